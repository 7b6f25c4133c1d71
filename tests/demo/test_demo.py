"""The demo: interruption, and progress in a log file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firth.demo import pretraining_demo
from firth.utils.errors import Interrupted
from tests.conftest import Result


def stop(**options: Any) -> None:
    raise Interrupted("The same command with --resume goes on.")


def test_an_interrupted_demo_cannot_be_resumed(
    firth_here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining_demo, "pretrain", stop)
    done = firth_here("demo", "--words", "1000", "--out", "made", "--json")
    assert (done.returncode, done.stdout) == (130, "")
    assert "--resume" not in done.stderr
    assert "interrupted" in done.error
    assert "made" in done.error


def test_stages_are_lines_without_a_terminal(
    firth_here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(callback: Callable[[str, dict[str, Any]], None], **options: Any) -> None:
        for part in (0.5, 1.0):
            callback("step", {"progress": part})
        raise Interrupted("")

    monkeypatch.setattr(pretraining_demo, "pretrain", pretrain)
    lines = firth_here("demo", "--words", "1000", "--out", "made").stderr.splitlines()
    assert lines[0] == "writing stories"
    assert lines[-2] == "pre-training encoder-tiny"
    assert len(set(lines)) == len(lines)
