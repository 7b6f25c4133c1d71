"""Every command and every piece of Python in the README runs, in order, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.findall(
    r"^```(bash|python)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)


CHAPTERS = (
    *("A small world", "Two vocabularies", "Tokens on disk", "What is hidden"),
    *("Three networks", "The encoder fills in", "The decoder writes on"),
    "The encoder-decoder puts back",
)


def run(command: list[str] | str, place: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=place,
        shell=isinstance(command, str),
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_readme_runs(tmp_path: Path) -> None:
    ran = 0
    for language, block in BLOCKS:
        if language == "python":
            run([sys.executable, "-c", block], tmp_path)
            continue
        for command in filter(None, block.splitlines()):
            if not command.startswith("make "):
                run(command, tmp_path)
                ran += 1
    assert ran >= 5


@pytest.mark.skipif(not (ROOT / ".venv/.ready").exists(), reason="make has not installed here")
def test_the_two_commands(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    shown = run(f"make demo DEMO='--minutes 0.2 --words 60000 --out {out}'", ROOT)
    for chapter in CHAPTERS:
        assert chapter in shown
    for picture in ("attention.png", "curves.png"):
        assert (out / picture).stat().st_size > 10_000
    # `make test` is what runs this test: here only that make knows what to do.
    assert "pytest" in run("make --dry-run test", ROOT)
