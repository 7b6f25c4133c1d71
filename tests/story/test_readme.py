"""Every command and every Python block of the README and of the tutorial runs, in order."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from firth.cli.app import app
from tests.conftest import in_process

ROOT = Path(__file__).parent.parent.parent
PAGES = ("README.md", "docs/tutorial.md")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"")


SHELL = {"|", ">", ">>", "<", "&", "&&", ";"}


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


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the language and the text of every bash and Python block of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Return every `firth …` command of the pages, as words."""
    found = [block for page in PAGES for kind, block in blocks(page) if kind == "bash"]
    lines = [line for block in found for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("firth ")]


def test_every_command_is_valid() -> None:
    """Verbs and options exist; nothing is run."""
    assert len(commands()) > 20
    for words in commands():
        command, name = typer.main.get_command(app), "firth"
        while isinstance(command, TyperGroup):
            name = words.pop(0)
            command = command.commands[name]
        command.make_context(name, words).close()


def test_every_link_leads_to_a_file() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = [(page, page.read_text(encoding="utf-8")) for page in pages]
    links = [(page, "".join(found)) for page, text in texts for found in LINK.findall(text)]
    assert len(links) > 40
    assert [link for link in links if not (link[0].parent / link[1]).exists()] == []


def serve_and_stop(words: list[str], folder: Path) -> None:
    """Start a server, and stop it when it answers."""
    command = [sys.executable, "-m", "firth", *words]
    browser = {**os.environ, "BROWSER": "true"}
    with subprocess.Popen(
        command, cwd=folder, env=browser, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        lines = iter(server.stderr.readline, "")
        assert any(line.startswith("Serving") for line in lines)
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    assert server.returncode == 0


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first command runs in a shell, the others in this process, which has imported torch."""
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, block in blocks(page):
        if language == "python":
            run([sys.executable, "-c", block], tmp_path)
            continue
        for command in filter(None, block.splitlines()):
            if command.startswith("make "):
                continue
            program, *words = shlex.split(command, posix=True)
            assert program == "firth"
            assert not SHELL & set(words), "this takes a shell"
            if words[0] == "serve":
                serve_and_stop([*words, "--port", "0"], tmp_path)
            elif ran == 0:
                run(command, tmp_path)
            else:
                done = in_process(*words)
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 5


@pytest.mark.nightly
@pytest.mark.skipif(not (ROOT / ".venv/.ready").exists(), reason="make has not installed here")
def test_make_demo_and_make_test(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    shown = run(f"make demo DEMO='--quick --chapter 1 --out {out}'", ROOT)
    assert "Text becomes tokens" in shown
    assert (out / "chapter-1.html").is_file()
    # `make test` is what runs this test: here only that make knows what to do.
    assert "pytest" in run("make --dry-run test", ROOT)
