"""Terminal output of `tasks`, `finetune` and `evaluate`: tables of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table

from firth.cli.terminal import new_table
from firth.metrics.language_modelling import Proportion
from firth.training.model_card import describe_training_examples, selection_note

if TYPE_CHECKING:  # these need torch
    from firth.jobs.dry_run import DryRunResult, StrategyCost
    from firth.jobs.evaluation import EvaluationResult
    from firth.jobs.finetuning import FinetuneResult
    from firth.jobs.suites import SuiteResult
    from firth.jobs.sweep import SweepResult
    from firth.metrics.bootstrap import Metric

MAX_NAMED = 12  # rows of a suite whose names are listed
GROUP_NAMES = {"type": "set", "term": "phenomenon"}  # of minimal pairs
EVALUATED_ON = {
    "dev set": "{n:,} of the dev set.",
    "held-out examples": "{n:,} held-out ones.",
    "cross-validation": "all {n:,} by cross-validation.",
    "training examples": "the training examples themselves.",
}
COST_NAMES = {  # in the table of one strategy
    "%": "trainable, %",
    "weights": "weights, MiB",
    "grads": "gradients, MiB",
    "optim.": "optimizer state, MiB",
    "activ.": "activations, MiB",
    "total": "memory in total, MiB",
}
UNITS = {
    "minimal-pairs": "pairs",
    "last-word": "texts",
    "similarity": "pairs",
    "analogies": "questions",
    "choice": "questions",
}


def tasks(rows: Sequence[Mapping[str, Any]]) -> Table:
    """List the tasks with their files, metric, recipes and task-specific models."""
    columns = ("task", "description", "files", "selection metric", "recipes", "untrained models")
    cells = [
        [row[name] for name in ("task", "about", "files", "metric")]
        + [", ".join(row["recipes"]) if row["trainable"] else "(evaluation only)"]
        + [", ".join(row["models"])]
        for row in rows
    ]
    return new_table(*columns, rows=cells, left=range(6), plain=True)


def metrics_table(metrics: Mapping[str, Metric]) -> Table:
    """Show metrics with their confidence intervals."""
    rows = [(name, _value(metric), metric.interval) for name, metric in metrics.items()]
    return new_table("metric", "value", "95 % interval", rows=rows)


def finetuned(result: FinetuneResult) -> list[RenderableType]:
    """Show the metrics and the cost of a fine-tuning run."""
    values, on = result.values(), result.evaluated_on
    cost = (
        f"Trainable parameters: {values['trainable_parameters']:,} of {values['parameters']:,} "
        f"({values['trainable_fraction']:.2%}, {result.config.strategy}); {result.steps:,} steps "
        f"in {result.seconds:.0f} s; peak memory {result.memory / 2**20:,.0f} MiB."
    )
    return [
        *_language_model(result.fitted_language_model),
        metrics_table(result.metrics),
        f"Trained on {describe_training_examples(values)}; evaluated on "
        + EVALUATED_ON[on].format(n=values["n"]),
        *selection_note(result.selected_on),
        cost,
        f"The model is in {result.path} ({result.family}); use it with "
        f"`firth predict {result.path} --data FILE`.",
    ]


def _language_model(values: Mapping[str, Any]) -> list[RenderableType]:
    """Describe the run on the texts alone that came before (ULMFiT)."""
    if not values:
        return []
    return [
        f"The language model was fine-tuned on {values['texts']:,} texts in {values['steps']:,} "
        f"steps: its loss on held-out texts fell from {values['loss_before']:.3f} to "
        f"{values['loss']:.3f} nats per token."
    ]


def dry_run(result: DryRunResult) -> list[RenderableType]:
    """Show what a strategy needs: parameters, memory, steps and time; several in one table."""
    if len(result.rows) == 1:
        (row,) = result.rows
        of = f"{row.trainable_parameters:,} of {row.parameters:,}"
        names = {COST_NAMES.get(name, name): cell for name, cell in _cost_cells(row).items()}
        table = new_table(row.strategy, "", rows=[("trainable parameters", of), *names.items()])
    else:
        columns = ("strategy", "trainable", *_cost_cells(result.rows[0]))
        table = new_table(*columns, plain=True)
        table.show_edge, table.padding = False, 0  # to fit into 80 columns
        for row in result.rows:
            own = _cost_cells(row).values()
            table.add_row(row.strategy, f"{row.trainable_parameters:,}", *own)
    how = "measured on the GPU" if result.memory_is_measured else "estimated, without torch itself"
    return [
        table,
        f"{result.examples:,} training examples in batches of {result.batch_size}; "
        f"{result.device}, {result.precision}.",
        f"Memory in MiB (weights, gradients, optimizer state, activations) is {how}, for a batch "
        "of the longest examples. Time is extrapolated from two discarded steps, without "
        "validation and early stopping.",
        *result.notes,
        "Nothing was trained or written.",
    ]


def _cost_cells(row: StrategyCost) -> dict[str, str]:
    """Return the cells of a strategy, by column."""
    return {
        "%": f"{100 * row.trainable_fraction:.2f}",
        "weights": _mib(row.weights),
        "grads": _mib(row.gradients),
        "optim.": _mib(row.optimizer),
        "activ.": "–" if row.activations is None else _mib(row.activations),
        "total": _mib(row.memory),
        "steps": f"{row.steps:,}",
        "time": "–" if row.seconds is None else _duration(row.seconds),
    }


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}" if size < 100 * 2**20 else f"{size / 2**20:,.0f}"


def _duration(seconds: float) -> str:
    """Format a time with its most useful unit.

    >>> _duration(0.31), _duration(48), _duration(1000), _duration(9000)
    ('0.3 s', '48 s', '17 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def evaluation(result: EvaluationResult) -> list[RenderableType]:
    """Show the metrics of an evaluation; of several models, in one table."""
    if result.models:
        return _compared(result)
    tables: list[RenderableType] = []
    for kind, rows in {"type": result.parts, **result.groups}.items():
        if len(rows) > (result.task != "tag"):
            tables.append(
                _parts(kind if result.task == "tag" else GROUP_NAMES.get(kind, kind), rows)
            )
    units = result.details.get("units") or UNITS.get(result.task, "examples")
    units = units.removesuffix("s") if result.n == 1 else units
    size = f"{result.n:,} {units} in {result.seconds:.1f} s."
    facts = [*_details(result.details), size, *selection_note(result.selected_on), *result.notes]
    return [metrics_table(result.metrics), *tables, *facts]


def _compared(result: EvaluationResult) -> list[RenderableType]:
    """Show one row for each model, with the interval of the task's selection metric."""
    from firth.tasks.registry import HEAD_TASKS, SCORING_TASKS, TASKS

    tasks: dict[str, Any] = {**TASKS, **SCORING_TASKS, **HEAD_TASKS}
    found, first = result.models, tasks[result.task].metric
    names = list(dict.fromkeys(name for one in found.values() for name in one.metrics))
    names.sort(key=lambda name: name != first)
    rows = [[model, *_row_cells(one.metrics, names), f"{one.n:,}"] for model, one in found.items()]
    columns = ("model", names[0], "95 % interval", *names[1:], "n")
    notes = [
        f"{model}: {note}"
        for model, one in found.items()
        for note in [*selection_note(one.selected_on), *one.notes]
    ]
    others = "The intervals of the other metrics are in the output of --json."
    return [new_table(*columns, rows=rows, plain=True), *([others] if names[1:] else []), *notes]


def _row_cells(metrics: Mapping[str, Metric], names: Sequence[str]) -> list[str]:
    values = [f"{metrics[name].value:.4f}" if name in metrics else "" for name in names]
    interval = metrics[names[0]].interval if names[0] in metrics else ""
    return [values[0], interval.replace(" to ", "–"), *values[1:]]


def _parts(kind: str, rows: Mapping[str, Mapping[str, Metric]]) -> Table:
    """Show the metrics of each group, with standard errors or the interval of the last metric."""
    names = list(next(iter(rows.values())))
    with_errors = any(isinstance(row[names[-1]], Proportion) for row in rows.values())
    cells = [
        [part, *(_value(row[name]) for name in names)]
        + ([] if with_errors else [row[names[-1]].interval])
        for part, row in rows.items()
    ]
    return new_table(kind, *names, *([] if with_errors else ["95 % interval"]), rows=cells)


def _value(metric: Metric) -> str:
    """Show a value, with its standard error if it has one."""
    if not isinstance(metric, Proportion):
        return f"{metric.value:.4f}"
    spread = f"({metric.interval})" if metric.error is None else f"± {metric.error:.4f}"
    return f"{metric.value:.4f} {spread}"


def _details(details: Mapping[str, Any]) -> list[str]:
    """Say how the metrics were computed."""
    if "ensemble" in details:
        return [f"Averaged predictions of {', '.join(details['ensemble'])}."]
    if "convention" in details:
        counts = ", ".join(f"{count:,} {name}" for name, count in details["counts"].items())
        window = f"windows of {details['context']:,} tokens, stride {details['stride']:,}"
        weights = f" Weights: {details['weights']}." if "weights" in details else ""
        return [f"Convention {details['convention']}: {counts}; {window}.{weights}"]
    return [f"Scored by {details['method']}, in fp32."] if "method" in details else []


def suite(result: SuiteResult) -> list[RenderableType]:
    """Show the metric of each task of a suite, and their average."""
    rows = [
        (row.name, row.measure, _value(row.score), row.score.interval, f"{row.n:,}")
        for row in result.rows
    ]
    columns = (result.suite, "metric", "value", "95 % interval", "n")
    table, summary = new_table(*columns, rows=rows, plain=True), []
    for name, average in list(result.averages.items())[:1]:
        named = len(result.averaged) <= MAX_NAMED
        over = ", ".join(result.averaged) if named else f"all {len(result.averaged)}"
        summary.append(
            f"The average {name} is {average.value:.4f} ({average.interval}), "
            f"unweighted over {over}."
        )
    return [table, *summary, f"Evaluated in {result.seconds:.0f} s.", *result.notes]


def sweep(result: SweepResult, out: Path) -> list[RenderableType]:
    """Compare several runs; for several seeds, show mean and standard deviation."""
    rows = {trial.name: _trial(run, result) for trial, run in result.done}
    table = new_table(result.kind, *next(iter(rows.values())), plain=True)
    for name, row in rows.items():
        table.add_row(name, *row.values(), style="bold" if name == result.best else "")
    remarks = [f"{trial.name}: {trial.why}" for trial in result.runs if trial.result is None]
    remarks += [
        f"{trial.name}: interval {run.metrics[result.metric].interval}."
        for trial, run in result.done
        if run.metrics[result.metric].low is None
    ]
    means = [(name, f"{mean:.4f}", f"± {std:.4f}") for name, (mean, std) in result.mean().items()]
    over_seeds = [new_table("metric", "mean", "std", rows=means)] if result.kind == "seeds" else []
    place = f"{out}, all runs are in {out / 'search'}"  # the best run was copied there
    if result.kind != "search":
        place = f"{out / result.best}, all runs are in {out}"
    last = f"The best run is {result.best}; its model is in {place}."
    return [table, *over_seeds, *remarks, *selection_note(result.selected_on), *result.notes, last]


def _trial(run: FinetuneResult, result: SweepResult) -> dict[str, str]:
    """Return the cells of one run; GPU memory only, for CPU memory includes earlier runs."""
    metric = run.metrics[result.metric]
    row = {
        result.metric: f"{metric.value:.4f}",
        "interval": "not available"
        if metric.low is None
        else f"{metric.low:.2f}–{metric.high:.2f}",
        "s": f"{run.seconds:.0f}",
    }
    if result.kind == "search":
        return row
    row |= {
        "trainable": f"{run.trainable_parameters:,}",
        "%": f"{run.values()['trainable_fraction']:.1%}",
    }
    if run.device == "cuda":
        row["GPU MiB"] = f"{run.memory / 2**20:,.0f}"
    return row | {"disk MiB": f"{run.saved_bytes / 2**20:,.2f}"}
