"""Progress bars and one-line descriptions in a notebook, which is simulated here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from firth import Tokenizer, finetune, prepare, pretrain, train_tokenizer
from firth.utils import notebook
from tests.conftest import SAMPLE

SIZE = {"hidden_size": 16, "num_heads": 2, "ffn_size": 16, "num_layers": 1}


class ZMQInteractiveShell:
    """The class of Jupyter's shell."""


class Bar:
    """What a notebook shows of one `display` call: the last update."""

    def __init__(self, data: dict[str, str]) -> None:
        self.updates = [data]

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.updates.append(data)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    """The progress bars of a simulated notebook."""
    bars: list[Bar] = []

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Bar:
        assert raw
        assert display_id
        bars.append(Bar(data))
        return bars[-1]

    shell, module, ipython = ZMQInteractiveShell(), ModuleType("display"), ModuleType("IPython")
    monkeypatch.setattr(module, "display", display, raising=False)
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setattr(ipython, "version_info", (9, 0), raising=False)  # matplotlib reads it
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(notebook, "INTERVAL", 0.0)
    monkeypatch.setattr(notebook, "DELAY", 0.0)
    return bars


def html(bar: Bar) -> str:
    return bar.updates[-1]["text/html"]


def test_a_bar_is_updated_in_place(shown: list[Bar]) -> None:
    for done in range(1, 4):
        notebook.show_progress("counting <words>", done, 3)
    assert len(shown) == 1
    assert len(shown[0].updates) == 3
    assert 'value="3" max="3"' in html(shown[0])
    assert "counting &lt;words&gt;" in html(shown[0])
    assert shown[0].updates[0]["text/plain"] == "counting <words> 1 of 3"
    notebook.show_progress("counting <words>", 1, 0)  # anew, without a total
    assert len(shown) == 2
    assert "max" not in html(shown[1])


def test_short_stages_have_no_bar(shown: list[Bar], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "DELAY", 1e9)
    notebook.show_progress("reading", 1, 2)
    notebook.show_progress("reading", 2, 2)
    assert shown == []


@pytest.mark.parametrize("shell", ["TerminalInteractiveShell", "NoneType", None])
def test_only_notebooks_have_bars(
    shown: list[Bar], monkeypatch: pytest.MonkeyPatch, shell: str | None
) -> None:
    if shell is None:
        monkeypatch.delitem(sys.modules, "IPython")
    else:
        instance = None if shell == "NoneType" else type(shell, (), {})()
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: instance)
    assert not notebook.in_notebook()
    notebook.show_progress("counting", 1, 3)
    assert shown == []


def test_runs_and_tokenizers_in_a_notebook(
    shown: list[Bar], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls show bars and validations, and what they return is described in one line."""
    text, table = tmp_path / "text.txt", tmp_path / "rows.tsv"
    text.write_text(SAMPLE, encoding="utf-8")
    rows = [f"{'red' if i % 2 else 'green'} sea {i}\t{'xy'[i % 2]}" for i in range(8)]
    table.write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
    options: dict[str, Any] = {"kind": "wordpiece", "vocab_size": 200, "workers": 1}
    tokenizer = train_tokenizer([text], **options)[0]
    tokenizer.save(tmp_path / "tokenizer")
    prepare([text], tokenizer=tmp_path / "tokenizer", out=tmp_path / "shards", valid_fraction=0.2)
    before = len(shown)
    overrides: dict[str, Any] = {f"model.{name}": size for name, size in SIZE.items()}
    overrides |= {"max_length": 16, "batch_tokens": 64}
    out: Callable[[str], Any] = lambda name: {"out": tmp_path / name, "overrides": overrides}  # noqa: E731
    run = pretrain(preset="encoder-tiny", data=tmp_path / "shards", steps=2, **out("a<b>"))
    assert before > 0
    assert 'value="1" max="1"' in html(shown[before])
    assert "step 2  loss" in html(shown[before])
    printed = capsys.readouterr().out
    assert "step 2  validation  loss" in printed
    overrides = {"steps": 2, "max_length": 16}
    files: dict[str, Any] = {"train": table, "dev": table}
    tuned = finetune(run.path, task="classify", **files, **out("tuned"))
    lines = (repr(tokenizer), repr(run), repr(tuned))
    facts = (
        ("wordpiece", "200 tokens", "[MASK]"),
        (str(run.path), "masked", "2 steps", "loss"),
        (str(tuned.path), "classify", "2 steps", "accuracy"),
    )
    for line, own in zip(lines, facts, strict=True):
        assert "\n" not in line
        assert len(line) < 130 + len(str(tmp_path))
        assert all(fact in line for fact in own), line
    assert "a&lt;b&gt;" in run._repr_html_()
    assert isinstance(tokenizer, Tokenizer)
    assert "[MASK]" in tokenizer._repr_html_()
