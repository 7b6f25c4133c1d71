"""Worker processes: order, laziness, and ending with the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from firth.utils.errors import FirthError
from firth.utils.workers import ordered_map

PRELUDE = "import os, sys, time\nfrom functools import partial\n"
PRELUDE += "from firth.utils.workers import ordered_map\n"


def _squarer(slow: int) -> Callable[[int], int]:
    def square(x: int) -> int:
        time.sleep(0.05 if x == slow else 0)
        return x * x

    return square


def _killer() -> Callable[[int], int]:
    def kill(x: int) -> int:
        if x == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    return kill


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_order(workers: int) -> None:
    assert list(ordered_map(partial(_squarer, 0), range(40), workers)) == [x * x for x in range(40)]


def test_items_are_taken_lazily() -> None:
    taken: list[int] = []

    def items() -> object:
        for i in range(100):
            taken.append(i)
            yield i

    results = ordered_map(partial(_squarer, -1), items(), 2)  # type: ignore[arg-type]
    next(results)
    assert len(taken) <= 8
    results.close()  # type: ignore[attr-defined]


def test_killed_worker_is_an_error() -> None:
    with pytest.raises(FirthError, match="A worker process was killed"):
        list(ordered_map(_killer, range(20), 2))


def test_scripts_without_a_main_guard_run_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        PRELUDE + "print('top')\nprint(list(ordered_map(partial(partial, pow, 2), range(5), 2)))\n"
    )
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    assert done.stdout == "top\n[1, 2, 4, 8, 16]\n"


def test_workers_end_with_their_parent() -> None:
    code = PRELUDE + (
        "results = ordered_map(partial(partial, pow, 2), iter(int, 1), 2)\n"
        "next(results); print(os.getpid(), flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    parent.stdout.readline()
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert len(children) >= 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while any(_alive(int(child)) for child in children):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
