"""Data: tokens a second with batches out of shards, against the same few batches again and again.

Firth's loop learns from shards as `firth pretrain` does: documents drawn in the order of an epoch,
cut, packed, hidden, put onto the device, a few batches ahead of the step. The other side is given
some of those batches, made beforehand, in turn: what it is faster by is what data costs.

    python bench/shards.py --shards shards
    python bench/shards.py --shards shards --presets encoder-small --set batch_tokens=65536
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from sides import in_turns, machine, with_changes

from firth.data.sampler import Sampler
from firth.data.shards import Shards
from firth.jobs.pretraining import build
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.data_loader import batch_planner
from firth.training.log import MetricsLog
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.pretrain_config import resolve_pretrain_config
from firth.training.state import PlannedBatch
from firth.utils.devices import device_spec

PRESETS = ("bert-base", "gpt2", "encoder-small")
STEPS = {"cuda": 30, "cpu": 2}  # of one turn
AGAIN = 4  # batches that come again


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    print(f"{machine(device)}; {STEPS[device.type]} steps, {options.repeats} times")
    print("preset            tokens   shards/s    again/s   ratio")
    ratios = []
    for preset in options.presets:
        with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
            tokens, sides = prepared(preset, options, device, Path(folder))
            took = in_turns(sides, device, warm=2, repeats=options.repeats)
        rates = {side: tokens / second for side, second in took.items()}
        ratios.append(rates["shards"] / rates["again"])
        line = f"{preset:14} {tokens // STEPS[device.type]:9,} {rates['shards']:10,.0f}"
        print(f"{line} {rates['again']:10,.0f} {ratios[-1]:7.3f}", flush=True)
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")


def prepared(
    preset: str, options: argparse.Namespace, device: torch.device, run: Path
) -> tuple[int, dict[str, Callable[[], object]]]:
    """The tokens of a turn, and both sides around one network."""
    shards, tokenizer = Shards(options.shards), Tokenizer.load(options.shards)
    budget, steps = {"steps": 1 << 30}, STEPS[device.type]
    job = resolve_pretrain_config(
        preset, None, tokenizer, budget, options.overrides, None, None, device_spec(device)
    )
    trainee = build(job, tokenizer).to(device)
    plan = batch_planner(job, Sampler(shards, 0), tokenizer)
    log = MetricsLog(run / "metrics.jsonl", 0, lambda kind, metrics: None)
    loop = TrainingLoop(trainee, job.training, plan, log, Callbacks())
    trainee.train()
    coming = iter(plan(loop.state, loop.progress))
    few = itertools.cycle([next(coming) for _ in range(AGAIN)])
    tokens = next(few).batch.tokens * steps

    def turn(batches: Iterator[PlannedBatch]) -> Callable[[], object]:
        def work() -> None:
            for planned in itertools.islice(batches, steps):
                loop.train_step(planned)
            loop.wait_for_pending()

        return work

    return tokens, {"shards": turn(coming), "again": turn(few)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--shards", required=True, help="that `firth prepare` made")
    parser.add_argument("--device", default=usual)
    parser.add_argument("--presets", type=lambda text: text.split(","), default=list(PRESETS))
    parser.add_argument("--repeats", type=int, default=5)
    return with_changes(parser)


if __name__ == "__main__":
    main()
