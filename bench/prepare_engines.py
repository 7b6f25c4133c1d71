"""Prepare text in parts and on Ray, against Firth's local engine on the same cores.

    local   firth prepare --workers 2
    parts   two processes, --part 1/2 and --part 2/2, at the same time; then --merge
    ray     firth prepare --engine ray: on the cluster of RAY_ADDRESS, whose CPU time is not
            counted, or on a local cluster with all cores, whose start is counted

Each engine runs as commands of its own, and all must write the same bytes, which is checked. CPU
time is that of all processes, sampled every 50 ms; other load on the machine affects it little. The
table has seconds, CPU seconds and the RSS of the largest process. Ratios are local / engine: 1.00
is as fast as the local engine, 0.90 is 10 % slower.

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
from measure import SAMPLING_INTERVAL, _process_tree, _read_proc, _resident

import firth

VOCAB_SIZE = 8_000
NUM_WORKERS = 2
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Time and memory of the commands of one engine."""

    seconds: float
    cpu_seconds: float
    max_rss: int  # bytes, of the largest process

    def plus(self, other: Cost) -> Cost:
        """Add the cost of commands that ran afterwards."""
        max_rss = max(self.max_rss, other.max_rss)
        return Cost(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds, max_rss)


def main() -> None:
    """Write the text files, run all engines in turn, compare their outputs and print the costs."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as name:
        folder = Path(name)
        text = folder / "text"
        text.mkdir()
        write_text(options.text, options.megabytes, folder / "whole.txt")
        content = (folder / "whole.txt").read_bytes()
        ends = [
            content.rfind(GAP.encode(), 0, -(-len(content) * n // options.files))
            for n in range(1, options.files)
        ]
        for number, (start, end) in enumerate(itertools.pairwise([0, *ends, len(content)])):
            (text / f"{number}.txt").write_bytes(content[start:end])
        tokenizer, _ = firth.train_tokenizer([text], kind="wordpiece", vocab_size=VOCAB_SIZE)
        tokenizer.save(folder / "tokenizer")
        costs: dict[str, Cost] = {}
        for repeat in range(options.repeats):
            for engine in ("local", *options.engines):
                out = folder / f"{engine}-{repeat}"
                cost = run_engine(engine, text, folder / "tokenizer", out, options.dedup)
                costs[engine] = min(cost, costs.get(engine, cost))  # the fastest
        _check_equal(sorted(folder.glob("*-[0-9]*")))
        _print_costs(costs, sum(path.stat().st_size for path in text.iterdir()) / 1e9)


def run_engine(engine: str, text: Path, tokenizer: Path, out: Path, dedup: bool) -> Cost:
    """Prepare the text with one engine; return the cost of its commands."""
    arguments = ["prepare", str(text), "--tokenizer", str(tokenizer), "--out", str(out), "--json"]
    arguments += ["--dedup"] if dedup else []
    if engine == "local":
        return run_commands([[*arguments, "--workers", str(NUM_WORKERS)]])
    if engine == "ray":
        return run_commands([[*arguments, "--engine", "ray"]])
    cost = Cost(0, 0, 0)
    for _ in range(2 if dedup else 1):  # with --dedup, the first pass finds the duplicates
        parts = [
            [*arguments, "--part", f"{n}/{NUM_WORKERS}", "--workers", "1"]
            for n in range(1, NUM_WORKERS + 1)
        ]
        cost = cost.plus(run_commands(parts)).plus(
            run_commands([[*arguments, "--merge", "--workers", str(NUM_WORKERS)]])
        )
    return cost


def run_commands(commands: list[list[str]]) -> Cost:
    """Run commands at the same time; sample CPU time and RSS of all their processes."""
    start = time.perf_counter()
    cpu_seconds: dict[int, float] = {}
    max_rss = 0
    processes = [
        subprocess.Popen([sys.executable, "-m", "firth", *arguments], stdout=subprocess.DEVNULL)
        for arguments in commands
    ]
    while any(process.poll() is None for process in processes):
        for process in processes:
            for pid in _process_tree(process.pid):
                cpu_seconds[pid] = max(cpu_seconds.get(pid, 0), _cpu_seconds(pid))
                max_rss = max(max_rss, _resident(pid))
        time.sleep(SAMPLING_INTERVAL)
    assert all(process.returncode == 0 for process in processes), "a command failed"
    return Cost(time.perf_counter() - start, sum(cpu_seconds.values()), max_rss)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, or 0 if it has ended."""
    fields = _read_proc(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS if fields else 0


def _check_equal(folders: list[Path]) -> None:
    """Print whether all folders hold the same files."""
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    print(
        f"outputs of all {len(folders)} runs: "
        f"{'equal' if contents[1:] == contents[:-1] else 'NOT equal'}"
    )


def _print_costs(costs: dict[str, Cost], gigabytes: float) -> None:
    """Print a row for each engine, with the ratios of the local engine to it."""
    print(
        f"{gigabytes * 1e3:.0f} MB of text, {NUM_WORKERS} workers, the fastest run of each engine"
    )
    print("engine  seconds  CPU s      CPU s/GB          max RSS  ratio (time)  ratio (CPU)")
    local = costs["local"]
    for engine, cost in costs.items():
        print(
            f"{engine:6}  {cost.seconds:7.1f}  {cost.cpu_seconds:5.1f}  "
            f"{cost.cpu_seconds / gigabytes:12,.0f}  {cost.max_rss / 1e9:12.2f} GB  "
            f"{local.seconds / cost.seconds:12.2f}  {local.cpu_seconds / cost.cpu_seconds:11.2f}"
        )


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", help="corpus file (default: Firth's stories)")
    parser.add_argument(
        "--megabytes", type=float, default=100, help="size of the text in MB (default: 100)"
    )
    parser.add_argument("--files", type=int, default=1, help="number of text files (default: 1)")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=("parts", "ray"),
        default=("parts", "ray"),
        help="engines besides local (default: both)",
    )
    parser.add_argument("--dedup", action="store_true", help="run `firth prepare` with --dedup")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each engine (default: 2)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
