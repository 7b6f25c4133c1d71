"""What many tests need: a way to call the command line, and a little text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

# Several tests run at a time: more threads than cores would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may look beyond this machine

SAMPLE = (Path(__file__).parent / "sample.txt").read_text(encoding="utf-8")


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A short text, as a file."""
    path = tmp_path / "sample.txt"
    path.write_text(SAMPLE, encoding="utf-8")
    return path


class Result(subprocess.CompletedProcess[str]):
    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def error(self) -> str:
        """The one sentence on stderr."""
        lines = [line for line in self.stderr.splitlines() if line.startswith("firth: ")]
        assert len(lines) == 1, self.stderr
        assert "Traceback" not in self.stderr
        return lines[0].removeprefix("firth: ")


@pytest.fixture
def firth(tmp_path: Path) -> Callable[..., Result]:
    """Run `firth …` in the temporary directory, in a process of its own."""

    def run(*arguments: str | Path, input: str | bytes | None = None) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "firth", *map(str, arguments)],
            input=input.encode() if isinstance(input, str) else input,
            capture_output=True,
            cwd=tmp_path,
            timeout=300,
        )
        return Result(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def firth_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The same in this process, which has torch already: quicker where no process is tested."""
    monkeypatch.chdir(tmp_path)
    return in_process


def in_process(*arguments: str | Path) -> Result:
    """Run `firth …` here; what no verb would let through is raised."""
    from firth.cli.app import app

    done = CliRunner().invoke(app, [str(word) for word in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Result(["firth", *map(str, arguments)], done.exit_code, done.stdout, done.stderr)
