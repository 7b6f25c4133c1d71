"""Runs on several ranks, as torchrun starts them: one process each, with its environment.

One program imports torch and forks the processes of all runs, which takes a fraction of the time
of as many programs.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_ranks(runs: list[dict[str, Any]], timeout: float = 300) -> list[dict[str, Any]]:
    """Call the job of each run with its options, on its number of `ranks`; return what happened.

    0 ranks: without torchrun. `command` = the arguments of `firth`, instead of a job. `kill` =
    [rank, step] kills a rank with SIGKILL before a step, or `kill_file` = [rank, name] when it
    writes this file of a checkpoint. `full_disk` = [rank, name] fails there once, and `no_memory` =
    [rank, step] once before a step. A result has the exit codes, the standard output and the
    standard error of all ranks.
    """
    command = [sys.executable, "-W", "ignore", __file__, json.dumps(runs, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def _run_command(arguments: list[str]) -> None:
    import torch

    from firth.cli.app import main

    torch.set_num_threads(1)
    sys.argv = ["firth", *arguments]
    main()


def _run_job(job: str, rank: int, options: dict[str, Any]) -> None:
    import torch

    import firth
    from firth.training.loop import Callbacks

    torch.set_num_threads(1)
    kill, kill_file = options.pop("kill", None), options.pop("kill_file", None)
    full_disk, no_memory = options.pop("full_disk", None), options.pop("no_memory", None)
    if kill_file and kill_file[0] == rank:
        _call_at_file(kill_file[1], _kill)
    if full_disk and full_disk[0] == rank:
        _call_at_file(full_disk[1], _fill_disk)
    failures = [no_memory]

    def before(step: int, batch: object) -> None:
        if kill == [rank, step]:
            _kill()
        if failures == [[rank, step]]:
            failures.clear()
            raise torch.OutOfMemoryError("out of memory")

    getattr(firth, job)(**options, callbacks=Callbacks(before_micro_batch=before))


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fill_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _call_at_file(name: str, fail: Callable[[], None]) -> None:
    """Fail once, when this process renames a file to a path with this text in it."""
    rename, failures = os.replace, [fail]

    def replace(source: Any, target: Any) -> None:
        if name in str(target) and failures:
            failures.pop()()
        rename(source, target)

    os.replace = replace


def _fork(run: dict[str, Any], rank: int, port: int, folder: Path) -> int:
    options = dict(run)
    job, ranks = options.pop("job", "pretrain"), options.pop("ranks")
    child = os.fork()
    if child:
        return child
    try:
        for number, name in ((1, "output"), (2, "errors")):
            os.dup2(os.open(folder / f"{name}-{rank}", os.O_CREAT | os.O_WRONLY), number)
        if ranks:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if "command" in options:
            _run_command(options["command"])
        else:
            _run_job(job, rank, options)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))
    except BaseException as error:
        traceback.print_exc()
        print(f"firth: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def main() -> None:
    import tempfile

    # All of these before the first fork: each child would import them again.
    import firth.cli.app
    import firth.jobs.evaluation
    import firth.jobs.finetuning
    import firth.jobs.prediction
    import firth.jobs.pretraining  # noqa: F401

    results = []
    for run in json.loads(sys.argv[1]):
        ranks, port, folder = max(1, run["ranks"]), _free_port(), Path(tempfile.mkdtemp())
        children = [_fork(run, rank, port, folder) for rank in range(ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        texts = {
            name: [(folder / f"{name}-{rank}").read_text() for rank in range(ranks)]
            for name in ("output", "errors")
        }
        results.append({"codes": codes, **texts})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
