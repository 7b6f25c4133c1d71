"""Runs that are killed with SIGKILL at a given step, each in a process of its own.

One program imports torch and forks a child for each run, which takes a fraction of the time of as
many programs. All runs are such children: results of different programs need not agree to the bit.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from typing import Any

# Imported before the first fork: jobs, and what optimizers and loss curves import when made.
NEEDED = ("firth.jobs.finetuning", "firth.jobs.pretraining", "torch._dynamo")
NEEDED += ("matplotlib.figure", "matplotlib.backends.backend_agg")


def run_in_children(job: str, runs: list[dict[str, Any]]) -> None:
    """Call `pretrain` or `finetune` with each run's options, in order.

    A run with `kill_at` must be killed before that step; all others must succeed. `threads` is the
    number of CPU threads, by default 1.
    """
    command = [sys.executable, __file__, job, json.dumps(runs, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def _run(job: str, options: dict[str, Any]) -> None:
    import torch

    import firth
    from firth.training.loop import Callbacks

    kill_at = options.pop("kill_at", None)
    torch.set_num_threads(options.pop("threads", 1))

    def kill(step: int, batch: object) -> None:
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    getattr(firth, job)(**options, callbacks=Callbacks(before_micro_batch=kill))


if __name__ == "__main__":
    for name in NEEDED:
        importlib.import_module(name)
    for options in json.loads(sys.argv[2]):
        child = os.fork()
        if child == 0:
            try:
                _run(sys.argv[1], dict(options))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        expected = -signal.SIGKILL if "kill_at" in options else 0
        assert status == expected, (options, status)
