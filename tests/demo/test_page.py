"""The demo's page: one file with every figure, for any width, without network requests."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from firth.demo.chapters import CHAPTERS, NEXT, Demo
from tests.conftest import Result

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# In each chapter, the classes of its figures and how many there are.
FIGURES = {
    1: {"text": 2},
    2: {"text": 3, "mask": 3},
    3: {"chart": 1, "table": 2},
    4: {"bars": 4, "text": 2},
    5: {"chart": 1, "table": 1, "text": 3},
    6: {"text": 3},
    8: {"table": 3, "bars": 1},
    9: {"text": 1, "bars": 1},
    10: {"table": 1},
}
# A frame as wide as a telephone; the page in it reports how wide its content is.
WIDTH = 390
FRAME = f"""<iframe src="probe.html" width="{WIDTH}" height="800"></iframe>
<script>onmessage = (event) => {{ document.title = "width " + event.data; }};</script>"""
PROBE = "<script>parent.postMessage(document.documentElement.scrollWidth, '*')</script>"


@pytest.mark.slow
def test_every_figure_is_on_the_page(demo: Demo, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    check_figures(text)
    for one in demo.results:
        for lead in one.chapter[:2]:
            assert lead in text


def check_figures(text: str) -> None:
    """Find the figures of each chapter, a description of each drawing, and the commands."""
    sections = text.split("<section ")[1:]
    assert len(sections) == len(CHAPTERS) + 1
    for number, expected in FIGURES.items():
        section = sections[number - 1]
        for kind, count in expected.items():
            assert section.count(f'<figure class="{kind}">') == count, (number, kind)
    drawings = re.findall(r"<svg (?![^>]*aria-hidden)[^>]*>", text)  # without those of legends
    assert len(drawings) == 5
    assert all(re.search('role="img" aria-label="[^"]{10}', drawing) for drawing in drawings)
    assert all('class="command"' in section for section in sections)
    assert sections[-1].count('class="command"') == len(NEXT)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
def test_the_page_in_a_browser(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    (tmp_path / "probe.html").write_text(text + PROBE, encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME, encoding="utf-8")
    shown = browse(page)
    check_figures(shown)
    assert shown.count("Copy</button>") == text.count('class="command"')  # the script has run
    width = re.search(r"<title>width (\d+)</title>", browse(tmp_path / "frame.html"))
    assert width is not None
    assert int(width[1]) <= WIDTH  # nothing sticks out


@pytest.mark.nightly
def test_the_quick_demo(firth: Callable[..., Result], tmp_path: Path) -> None:
    done = firth("demo", "--quick", "--out", "made")
    assert done.returncode == 0, done.stderr
    for chapter in CHAPTERS:
        assert chapter.title in done.stdout
        assert chapter.sentence in done.stdout
    check_figures((tmp_path / "made/index.html").read_text(encoding="utf-8"))


def browse(file: Path) -> str:
    """Return the document as Chromium has it after running its scripts."""
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"]
    command = [CHROMIUM, *options, "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
