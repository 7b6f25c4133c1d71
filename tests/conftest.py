"""What many tests need: ways to call the command line, and a short text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

# Several tests run at a time: more threads than cores would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may look beyond this machine
for name in ("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR"):  # nor at its terminal
    os.environ.pop(name, None)

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
    """The same in this process, which has imported torch: for tests that need no new process."""
    monkeypatch.chdir(tmp_path)
    return in_process


def in_process(*arguments: object, input: str = "") -> Result:
    """Run `firth …` in this process; errors that are not handled are raised."""
    from firth.cli.app import app

    with standard_input(input):
        done = CliRunner().invoke(app, [str(word) for word in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Result(["firth", *map(str, arguments)], done.exit_code, done.stdout, done.stderr)


@contextmanager
def standard_input(text: str) -> Iterator[None]:
    """Make a pipe with this text the standard input of this process."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())  # a pipe holds 64 KiB without a reader
    os.close(writer)
    before = os.dup(0)
    os.dup2(reader, 0)
    os.close(reader)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
