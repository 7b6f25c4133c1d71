"""Terminal output of `stories`, `tokenizer train`, `prepare` and `pretrain`: counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from firth.cli.terminal import new_table

if TYPE_CHECKING:
    from firth.data.corpus import CorpusReport
    from firth.data.stories import Summary
    from firth.jobs.prepare_output import PrepareResult
    from firth.jobs.pretrain_dry_run import PretrainDryRun
    from firth.jobs.pretrain_result import PretrainResult
    from firth.training.distributed.traced_step import RankCost


NEXT_STEP = {
    "signatures": "The signatures of this part are in {}: run --merge when all parts have theirs.",
    "duplicates": "The duplicates are found ({}): run every --part again, then --merge.",
}


def report(report: CorpusReport) -> Table:
    """Count documents and words, and what cleaning removed or repaired."""
    counts = [(name, getattr(report, name)) for name in ("documents", "words", "characters")]
    counts += [(f"removed: {why}", count) for why, count in sorted(report.removed.items())]
    counts += sorted(report.repaired.items())
    return new_table("", "count", rows=[(what, f"{count:,}") for what, count in counts])


def prepared(prepared: PrepareResult) -> list[RenderableType]:
    """Show the cleaning report and the size of each split, or what is complete of the parts."""
    if prepared.stage in NEXT_STEP:
        return [NEXT_STEP[prepared.stage].format(prepared.url or prepared.path)]
    columns = ("documents", "sentences", "tokens", "shards")
    rows = [
        (split, *(f"{totals[column]:,}" for column in columns))
        for split, totals in prepared.splits.items()
    ]
    lines: list[RenderableType] = [report(prepared.report), new_table("split", *columns, rows=rows)]
    if prepared.sources:
        header = (f"{split} tokens" for split in prepared.splits)
        sizes = [
            (name, *(f"{tokens:,}" for tokens in splits.values()))
            for name, splits in prepared.sources.items()
        ]
        lines.append(new_table("source", *header, rows=sizes))
    if prepared.resumed:
        lines.append("Continued an interrupted run.")
    if "valid" not in prepared.splits:
        lines.append("There is no validation split.")
    what = "part is" if prepared.stage == "part" else "shards are"
    return [*lines, *prepared.notes, f"The {what} in {prepared.url or prepared.path}."]


def stories(summary: Summary) -> list[RenderableType]:
    """Count the stories, and the examples of each task."""
    rows = [(what, f"{getattr(summary, what):,}") for what in ("stories", "words", "vocabulary")]
    rows.append(("long test sentences also in train", f"{summary.repeated:.1%}"))
    counts = list(summary.examples.items())
    tasks = [
        (parts[0][0].split("/")[0], *(f"{count:,}" for _, count in parts))
        for parts in zip(counts[::3], counts[1::3], counts[2::3], strict=True)
    ]
    tables = (
        new_table("", "count", rows=rows),
        new_table("task", "train", "dev", "test", rows=tasks),
    )
    return [*tables, f"The stories are in {summary.out}."]


def pretrained(result: PretrainResult) -> list[RenderableType]:
    """Summarize a pre-training run."""
    from firth.training.model_card import LOSS_CURVE  # imports torch, which `prepare` does not need

    rows = {
        "parameters": f"{result.model.num_parameters:,}",
        **({"steps": f"{result.steps:,}"} if result.steps else {}),
        "tokens": f"{result.tokens:,}",
        "minutes": f"{result.seconds / 60:.1f}",
        **_validation_loss(result),
        **{f"validation loss, {name}": f"{x:.3f}" for name, x in result.source_losses.items()},
        "format": result.family,
    }
    path, table = result.path, new_table("", "", rows=list(rows.items()))
    curve = f", its loss curve in {path / LOSS_CURVE}" if (path / LOSS_CURVE).is_file() else ""
    return [table, f"The model is in {path}{curve}."]


def pretraining_cost(result: PretrainDryRun) -> list[RenderableType]:
    """Show the memory of a rank and what it exchanges, for replicated and for sharded weights."""
    ranks = f"{result.world_size:,} rank" + "s" * (result.world_size > 1)
    table = new_table(ranks, *(f"--parallel {row.parallel}" for row in result.rows), plain=True)
    cells = [_rank_cells(row) for row in result.rows]
    for name in dict.fromkeys(name for row in cells for name in row):
        table.add_row(name, *(row.get(name, "–") for row in cells))
    kinds = {"cuda": "GPUs", "cpu": "CPUs (for GPUs, also without one: --device cuda)"}
    return [
        table,
        f"{result.preset}: {result.parameters:,} parameters, {result.optimizer}, "
        f"{result.precision}, on {kinds.get(result.device, result.device)}. A step has "
        f"{result.batch_tokens:,} tokens in {result.sequences:,} sequences, on all ranks together.",
        "Traced on rank 0 with torch's fake tensors and fake process group, which need neither "
        "memory nor other ranks. Memory: the tensors that are alive at the peak; torch itself, "
        "unused parts of its allocations, torch.compile and CUDA graphs come on top. Sent: by "
        "each rank, on average, with ring algorithms.",
        "Nothing was trained or written.",
    ]


def _rank_cells(row: RankCost) -> dict[str, str]:
    """Return the cells of a table's column by name."""
    memory = {
        "peak memory": row.memory,
        "  weights": row.weights,
        "  gradients so far": row.gradients,
        "  optimizer state": row.optimizer,
        "  activations and buffers": row.activations,
    }
    cells = {name: _binary_size(size) for name, size in memory.items()}
    cells |= {"micro-batches per step": f"{row.micro_batches:,}"}
    cells |= {"sent per step": _binary_size(row.sent)}
    calls = row.collectives.items()
    return cells | {f"  {name} calls": f"{count:,}" for name, count in calls}


def _binary_size(size: int) -> str:
    """Format a number of bytes with its most useful unit.

    >>> _binary_size(999), _binary_size(5 << 20), _binary_size(3 << 29)
    ('999 B', '5.00 MiB', '1.50 GiB')
    """
    if size < 1024:
        return f"{size} B"
    power = min(3, (size.bit_length() - 1) // 10)
    return f"{size / 1024**power:,.{2 if size < 100 * 1024**power else 1}f} {' KMG'[power]}iB"


def _validation_loss(result: PretrainResult) -> dict[str, str]:
    """Return the row of the validation loss; word vectors have none, as they predict no tokens."""
    if result.loss is not None:
        return {"validation loss": f"{result.loss:.3f}"}
    return {"validation loss": "none"} if result.model.network.heads else {}
