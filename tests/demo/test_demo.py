"""The demo: its chapters, its commands, its verdicts, and what happens when it is interrupted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from firth.cli.app import app
from firth.cli.views.figures import figures
from firth.demo import chapter_pretraining
from firth.demo.chapter_labels import PRETRAINED, SCRATCH, LabelResult, compare
from firth.demo.chapters import CHAPTERS, NEXT, Demo, run_demo
from firth.metrics.bootstrap import Metric
from firth.utils.errors import Interrupted, UsageError
from tests.conftest import Result


@pytest.mark.slow
def test_every_chapter_has_results_figures_and_commands(demo: Demo) -> None:
    assert [one.chapter for one in demo.results] == list(CHAPTERS)
    for one in demo.results:
        assert one.findings.figures
        assert one.findings.values
        assert one.findings.commands
        assert figures(one.findings.figures)  # in a terminal
    made = json.loads(json.dumps(demo.values()))
    assert [one["chapter"] for one in made["chapters"]] == [*range(1, len(CHAPTERS) + 1)]


@pytest.mark.slow
def test_predictions_come_before_halfway_and_after(demo: Demo) -> None:
    found = demo.results[2].findings.values
    tokens = [one["tokens"] for one in found["snapshots"]]
    assert tokens[0] == 0
    assert tokens[0] < tokens[1] < tokens[2]
    assert tokens[2] >= found["tokens"] - 1024
    assert found["losses"]


@pytest.mark.slow
def test_the_comparison_is_on_the_same_test_texts(demo: Demo) -> None:
    found = demo.results[4].findings.values
    rows = [(row["model"], row["labels"]) for row in found["rows"]]
    assert rows == [(m, n) for n in (6, 12) for m in (PRETRAINED, SCRATCH)]
    for one in found["comparisons"]:
        assert f"{one['labels']} labels" in one["verdict"]
    lora = demo.results[9].findings.values
    full, small = lora.values()
    assert small["trainable_parameters"] < full["trainable_parameters"]


@pytest.mark.slow
def test_commands_are_accepted_by_the_command_line(demo: Demo) -> None:
    commands = [line for one in demo.results for line in one.findings.commands]
    for line in (*commands, *NEXT):
        program, *words = shlex.split(line)
        assert program == "firth"
        verb: Any = get_command(app)
        while hasattr(verb, "commands"):
            verb = verb.commands[words.pop(0)]
        verb.make_context(verb.name, words)  # an unknown option is an error


def label_results(pretrained: list[int], scratch: list[int]) -> list[LabelResult]:
    accuracy = Metric(value=0.0, low=None, high=None)
    return [
        LabelResult(name, 100, accuracy, np.array(correct, dtype=np.float64))
        for name, correct in ((PRETRAINED, pretrained), (SCRATCH, scratch))
    ]


@pytest.mark.parametrize(
    ("pretrained", "scratch", "holds", "said"),
    [
        ([1] * 90 + [0] * 10, [1] * 60 + [0] * 40, True, "helps"),
        ([1] * 60 + [0] * 40, [1] * 90 + [0] * 10, False, "contradicts"),
        ([1, 0] * 50, [0, 1] * 50, None, "no clear difference"),
    ],
)
def test_a_result_against_the_lesson_is_reported_with_its_interval(
    pretrained: list[int], scratch: list[int], holds: bool | None, said: str
) -> None:
    (found,) = compare(label_results(pretrained, scratch))
    assert found.holds is holds
    assert said in found.verdict
    assert "100 labels" in found.verdict
    assert "95 % interval" in found.verdict
    assert f"{100 * found.difference.value:+.0f} points" in found.verdict


def test_one_chapter_as_text_and_as_json(
    tiny_demo: None, firth_here: Callable[..., Result]
) -> None:
    done = firth_here("demo", "--chapter", 1, "--out", "made", "--json").json
    (chapter,) = done["chapters"]
    assert chapter["chapter"] == 1
    assert chapter["results"]["words"] >= 12_000
    assert Path(done["page"]).name == "chapter-1.html"
    assert chapter["title"] in Path(done["page"]).read_text(encoding="utf-8")
    shown = firth_here("demo", "--chapter", 1, "--out", "made").stdout  # over the earlier one
    assert shown.index(chapter["title"]) < shown.index(chapter["sentence"])
    for fact in (*chapter["commands"], f"{chapter['results']['words']:,}", done["page"]):
        assert fact in shown


def stop(**options: Any) -> None:
    raise Interrupted("The same command with --resume goes on.")


def test_an_interrupted_demo_cannot_be_resumed(
    tiny_demo: None, firth_here: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chapter_pretraining, "pretrain", stop)
    done = firth_here("demo", "--chapter", 3, "--out", "made")
    assert done.returncode == 130
    assert "--resume" not in done.stderr
    assert "interrupted" in done.error
    assert "made" in done.error
    stages = done.stderr.splitlines()
    assert stages[0] == "writing stories"
    assert len(set(stages)) == len(stages)


def test_there_is_no_such_chapter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"1 to {len(CHAPTERS)}"):
        run_demo(tmp_path, chapter=len(CHAPTERS) + 1)


def test_other_files_are_kept(tiny_demo: None, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("my notes")
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(UsageError, match=out.name):
            run_demo(out, chapter=2)
    assert (tmp_path / "mine.txt").read_text() == "my notes"
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
