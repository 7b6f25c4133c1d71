"""Cost of data loading: training tokens/s with batches from shards, against batches in memory.

Firth's training loop reads shards as `firth pretrain` does: documents in the order of the epoch,
cut, packed, masked and copied to the device, a few batches ahead of the training step. The baseline
is the same loop and the same model with four of these batches, prepared beforehand and repeated.
Nothing else differs, so the ratio of the tokens/s is the speed that data loading leaves (1.00: it
costs nothing). The last line is the geometric mean over the presets.

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
from sides import machine, median_seconds, with_changes

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
STEPS = {"cuda": 30, "cpu": 2}  # training steps per timed run
NUM_REPEATED = 4  # batches of the baseline


def main() -> None:
    """Measure both for each preset and print the tokens/s."""
    options = _options()
    device = torch.device(options.device)
    print(
        f"{machine(device)}; tokens/s over {STEPS[device.type]} steps, median of {options.repeats}"
    )
    print("preset         tokens/step     shards   repeated   ratio")
    ratios = []
    for preset in options.presets:
        with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
            tokens, functions = prepare_training(preset, options, device, Path(folder))
            times = median_seconds(functions, device, warmup=2, repeats=options.repeats)
        speeds = {source: tokens / seconds for source, seconds in times.items()}
        ratios.append(speeds["shards"] / speeds["repeated"])
        line = f"{preset:14} {tokens // STEPS[device.type]:9,} {speeds['shards']:10,.0f}"
        print(f"{line} {speeds['repeated']:10,.0f} {ratios[-1]:7.3f}", flush=True)
    print(f"ratio: {statistics.geometric_mean(ratios):.2f}")


def prepare_training(
    preset: str, options: argparse.Namespace, device: torch.device, run: Path
) -> tuple[int, dict[str, Callable[[], object]]]:
    """Return the tokens of a timed run, and the functions that train on either kind of batches."""
    shards, tokenizer = Shards(options.shards), Tokenizer.load(options.shards)
    budget, steps = {"steps": 1 << 30}, STEPS[device.type]
    config = resolve_pretrain_config(
        preset, None, tokenizer, budget, options.overrides, None, None, device_spec(device)
    )
    module = build(config, tokenizer).to(device)
    plan = batch_planner(config, Sampler(shards, 0), tokenizer)
    log = MetricsLog(run / "metrics.jsonl", 0, lambda kind, metrics: None)
    loop = TrainingLoop(module, config.training, plan, log, Callbacks())
    module.train()
    from_shards = iter(plan(loop.state, loop.progress))
    repeated = itertools.cycle([next(from_shards) for _ in range(NUM_REPEATED)])
    tokens = next(repeated).batch.tokens * steps

    def training_run(batches: Iterator[PlannedBatch]) -> Callable[[], object]:
        """Return a function that takes the training steps of one timed run."""

        def train() -> None:
            for planned in itertools.islice(batches, steps):
                loop.train_step(planned)
            loop.wait_for_pending()

        return train

    return tokens, {"shards": training_run(from_shards), "repeated": training_run(repeated)}


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--shards", required=True, help="folder written by `firth prepare`")
    parser.add_argument(
        "--device", default=default_device, help="cuda or cpu (default: cuda if available)"
    )
    parser.add_argument(
        "--presets",
        type=lambda text: text.split(","),
        default=list(PRESETS),
        help=f"comma-separated (default: {','.join(PRESETS)})",
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs of each side (default: 5)"
    )
    return with_changes(parser)


if __name__ == "__main__":
    main()
