"""The demo as someone meets it who stops it half way, or looks at its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firth import tour
from firth.errors import Interrupted
from tests.conftest import Result


def stop(**options: Any) -> None:
    raise Interrupted("The same command with --resume goes on.")


def test_a_demo_that_is_stopped_says_what_is_true_of_it(
    firth_here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tour, "pretrain", stop)
    done = firth_here("demo", "--words", "1000", "--out", "made", "--json")
    assert (done.returncode, done.stdout) == (130, "")
    assert "--resume" not in done.stderr
    assert done.error.startswith("The demo was stopped, as asked.")
    assert done.error.endswith("is in made.")


def test_its_stages_are_lines_where_there_is_no_terminal(
    firth_here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(listener: Callable[[str, dict[str, Any]], None], **options: Any) -> None:
        for part in (0.5, 1.0):
            listener("step", {"progress": part})
        raise Interrupted("")

    monkeypatch.setattr(tour, "pretrain", pretrain)
    lines = firth_here("demo", "--words", "1000", "--out", "made").stderr.splitlines()
    assert lines[0] == "telling stories"
    assert lines[-2] == "learning encoder-tiny"
    assert len(set(lines)) == len(lines)
