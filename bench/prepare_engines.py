"""Preparing text in parts and on Ray, against Firth's local engine, on the same cores.

    local   firth prepare --workers 2
    parts   two processes, --part 1/2 and --part 2/2, at the same time; then --merge
    ray     firth prepare --engine ray on the cluster of RAY_ADDRESS, whose processor time is not
            counted, or on one of its own with all cores, whose start is included

Each runs as a command of its own; all must write the same bytes. Processor time is that of all
processes, looked at every 50 ms, so that other load on the machine matters little. The printed
ratios are local / other: 1.00 is as fast as the local engine, 0.90 is 10 % slower.

    python bench/prepare_engines.py
    python bench/prepare_engines.py --megabytes 200 --engines parts ray --dedup
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from grown_text import GAP, write_text
from measure import PAUSE, _read, _resident, _tree

import firth

VOCAB_SIZE = 8_000
CORES = 2
TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """What the commands of one engine took."""

    seconds: float
    cpu: float
    worker: int  # bytes: the largest process

    def plus(self, other: Cost) -> Cost:
        """Add commands that ran afterwards."""
        worker = max(self.worker, other.worker)
        return Cost(self.seconds + other.seconds, self.cpu + other.cpu, worker)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as name:
        folder = Path(name)
        text = folder / "text"
        text.mkdir()
        write_text(options.text, options.megabytes, folder / "whole.txt")
        whole = (folder / "whole.txt").read_bytes()
        ends = [
            whole.rfind(GAP.encode(), 0, -(-len(whole) * n // options.files))
            for n in range(1, options.files)
        ]
        for number, (begin, end) in enumerate(itertools.pairwise([0, *ends, len(whole)])):
            (text / f"{number}.txt").write_bytes(whole[begin:end])
        tokenizer, _ = firth.train_tokenizer([text], kind="wordpiece", vocab_size=VOCAB_SIZE)
        tokenizer.save(folder / "tokenizer")
        costs: dict[str, Cost] = {}
        for repeat in range(options.repeats):
            for engine in ("local", *options.engines):
                out = folder / f"{engine}-{repeat}"
                cost = run_engine(engine, text, folder / "tokenizer", out, options.dedup)
                costs[engine] = min(cost, costs.get(engine, cost))  # in seconds
        _check_equal(sorted(folder.glob("*-[0-9]*")))
        _print_costs(costs, sum(path.stat().st_size for path in text.iterdir()) / 1e9)


def run_engine(engine: str, text: Path, tokenizer: Path, out: Path, dedup: bool) -> Cost:
    """Prepare a text with one engine."""
    words = ["prepare", str(text), "--tokenizer", str(tokenizer), "--out", str(out), "--json"]
    words += ["--dedup"] if dedup else []
    if engine == "local":
        return run([[*words, "--workers", str(CORES)]])
    if engine == "ray":
        return run([[*words, "--engine", "ray"]])
    cost = Cost(0, 0, 0)
    for _ in range(2 if dedup else 1):
        parts = [[*words, "--part", f"{n}/{CORES}", "--workers", "1"] for n in range(1, CORES + 1)]
        cost = cost.plus(run(parts)).plus(run([[*words, "--merge", "--workers", str(CORES)]]))
    return cost


def run(commands: list[list[str]]) -> Cost:
    """Run commands at the same time, and look at all their processes."""
    started = time.perf_counter()
    cpu: dict[int, float] = {}
    worker = 0
    running = [
        subprocess.Popen([sys.executable, "-m", "firth", *words], stdout=subprocess.DEVNULL)
        for words in commands
    ]
    while any(process.poll() is None for process in running):
        for process in running:
            for pid in _tree(process.pid):
                cpu[pid] = max(cpu.get(pid, 0), _cpu(pid))
                worker = max(worker, _resident(pid))
        time.sleep(PAUSE)
    assert all(process.returncode == 0 for process in running), "a command failed"
    return Cost(time.perf_counter() - started, sum(cpu.values()), worker)


def _cpu(pid: int) -> float:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0


def _check_equal(folders: list[Path]) -> None:
    contents = [{path.name: path.read_bytes() for path in one.iterdir()} for one in folders]
    print(
        f"bytes of {len(folders)} runs: {'equal' if contents[1:] == contents[:-1] else 'NOT equal'}"
    )


def _print_costs(costs: dict[str, Cost], gigabytes: float) -> None:
    print(f"{gigabytes * 1e3:.0f} MB of text, {CORES} cores, best of each")
    print("engine  seconds  CPU s  CPU s per GB  largest process  ratio (time)  ratio (CPU)")
    local = costs["local"]
    for engine, cost in costs.items():
        print(
            f"{engine:6}  {cost.seconds:7.1f}  {cost.cpu:5.1f}  {cost.cpu / gigabytes:12,.0f}  "
            f"{cost.worker / 1e9:12.2f} GB  {local.seconds / cost.seconds:12.2f}  "
            f"{local.cpu / cost.cpu:11.2f}"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", help="any corpus file; else Firth's stories")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--files", type=int, default=1, help="that the text is divided into")
    parser.add_argument("--engines", nargs="+", choices=("parts", "ray"), default=("parts", "ray"))
    parser.add_argument("--dedup", action="store_true")
    parser.add_argument("--repeats", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
