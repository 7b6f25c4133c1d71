"""What many tests need: ways to call the command line, and a short text."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from typer.testing import CliRunner

# Several tests run at a time: more threads than cores would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may look beyond this machine
for name in ("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR"):  # nor at its terminal
    os.environ.pop(name, None)

import torch  # noqa: E402  it reads OMP_NUM_THREADS

if not torch.cuda.is_available():
    # Where Triton is installed: see `kernels.py`. No other test runs a Triton kernel on a CPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SAMPLE = (Path(__file__).parent / "sample.txt").read_text(encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples of each property where the nightly tests are left out.

    A deadline would make results depend on what else the machine does.
    """
    often = "not nightly" in config.option.markexpr
    settings.register_profile("firth", max_examples=20 if often else 100, deadline=None)
    settings.load_profile("firth")


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules, which stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def blank_loss_curves() -> Iterator[Callable[..., Any]]:
    """Save blank figures instead of loss curves: drawing takes longer than a small run."""
    from matplotlib.figure import Figure

    from firth.utils import plotting

    draw_loss = plotting._draw_loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plotting, "_draw_loss", lambda *_: Figure(figsize=(0.1, 0.1)))
        yield draw_loss


@pytest.fixture
def draw_loss(
    blank_loss_curves: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Draw loss curves in this test."""
    monkeypatch.setattr("firth.utils.plotting._draw_loss", blank_loss_curves)
    return blank_loss_curves


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


@pytest.fixture(
    scope="module"
)  # not longer: while it is open, this thread has a running event loop
def browser() -> Iterator[Browser]:
    """Start Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open HTML files; at the end, none of them has requested anything or reported an error."""
    requests, errors, opened = [], [], []

    def open_file(path: Path, width: int = 1280, dark: bool = False) -> Page:
        page = browser.new_page(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if dark else "light",
            has_touch=True,
        )
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: errors.append(message.text))  # also of the policy
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        opened.append(page)
        return page

    yield open_file
    assert requests == [page.url for page in opened]
    assert not errors
    for page in opened:
        page.close()
