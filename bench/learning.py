"""Learning: what a few minutes of pre-training teach, measured by BLiMP.

Each run learns from the same shards for so many minutes and is then asked which sentence of each
minimal pair is likelier: an encoder by pseudo-log-likelihood, a decoder by log-likelihood, a hybrid
in both ways. Nothing but the network and its objective differs between runs: all else is the trio's
recipe, unless --set says otherwise. Compiling is not counted, validations are.

    python bench/learning.py --shards shards --blimp blimp --seeds 0,1,2
    python bench/learning.py --shards shards --blimp blimp --runs encoder --set learning_rate=4e-3
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from sides import machine, with_changes

from firth.jobs.pretraining import pretrain
from firth.jobs.suites import evaluate_suite

RUNS = {  # preset, objective
    "encoder": ("encoder-small", "masked"),
    "decoder": ("decoder-small", "causal"),
    "hybrid": ("decoder-small", "hybrid"),
    "hybrid-batches": ("decoder-small", "hybrid-batches"),
}


def main() -> None:
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")  # of BLiMP's scores on a GPU
    print(
        f"{machine(device)}; {options.minutes:g} minutes each, {options.overrides or 'the recipe'}"
    )
    print("run      seed  steps   tokens  tokens/s  validation  BLiMP, %")
    found: dict[str, list[float]] = {}
    for name in options.runs:
        for seed in options.seeds:
            for what, score in learn(name, seed, options).items():
                found.setdefault(f"{name} {what}".strip(), []).append(score)
    for name, scores in found.items():
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        print(f"{name}: {statistics.fmean(scores):.1f}{spread} over {len(scores)} seeds")


def learn(name: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """One run, and its accuracies in percent by the way it was asked."""
    preset, objective = RUNS[name]
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        trained = pretrain(
            preset=preset,
            objective=objective,
            data=options.shards,
            out=Path(folder) / "run",
            minutes=options.minutes,
            seed=seed,
            overrides={"validate_every": 0.25} | options.overrides,
        )
        began = time.monotonic()
        suite = evaluate_suite(trained.model, "blimp", data=options.blimp)
    scores = {
        key.removesuffix("accuracy").strip("_ "): 100 * figure.value
        for key, figure in suite.averages.items()
        if key.endswith("accuracy")
    }
    shown = ", ".join(f"{way} {score:.1f}".strip() for way, score in scores.items())
    rate, loss = trained.tokens / trained.seconds, trained.loss or float("nan")
    print(
        f"{name:8} {seed:4} {trained.steps:6,} {trained.tokens / 1e6:7.1f}M {rate:9,.0f} "
        f"{loss:11.3f}  {shown}  (asked in {time.monotonic() - began:.0f} s)",
        flush=True,
    )
    return scores


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shards", required=True, help="that `firth prepare` made")
    parser.add_argument("--blimp", required=True, help="a folder with its files")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--runs", type=lambda text: text.split(","), default=list(RUNS))
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0]
    )
    return with_changes(parser)


if __name__ == "__main__":
    main()
