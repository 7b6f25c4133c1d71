"""The study of context: the blanks, their scores, and the verdict."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from firth.jobs.fill_comparison import compare_fill
from firth.model import load
from firth.study.cells.blank_cells import (
    BOTH,
    LEFT,
    Blank,
    _is_known,
    _words,
    removed_words,
    score_blanks,
)
from firth.study.context import _findings
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellCache
from firth.study.engine.statistics import Scores
from firth.study.running import run_study
from firth.utils.errors import InputError

SENTENCE = "The dog barked loudly at the mailman, and the cat slept on the mat."


def test_a_blank_and_its_sides_are_the_text() -> None:
    blanks = list(_words(3, SENTENCE))
    assert {blank.before + blank.answer + blank.after for blank in blanks} == {SENTENCE}
    assert [blank.answer for blank in blanks] == SENTENCE.replace(",", "").strip(".").split()[1:]
    assert [blank.left_words for blank in blanks] == list(range(1, 14))


def test_words_of_several_tokens_are_left_out() -> None:
    tokenizer = load("stories-encoder").require_tokenizer()
    common, rare = Blank(0, "The ", "dog", " barked."), Blank(0, "The ", "zyzzyva", " barked.")
    assert _is_known(common, [tokenizer], one_token=True)
    assert not _is_known(rare, [tokenizer], one_token=True)


def test_the_baseline_is_the_most_frequent_removed_word(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(["The dog saw the old dog at home."] * 30))
    tokenizers = [load("stories-encoder").path]
    settings = {"text": text, "tokenizers": tokenizers, "texts": 30, "blanks": 7, "max_words": 20}
    found = CellCache(tmp_path / "cells").run(Cell(removed_words, settings)).values
    assert (found["texts"], found["blanks"]) == (30, 30 * 7)
    assert (found["most_frequent"], found["baseline"]) == ("dog", pytest.approx(2 / 7))


@pytest.mark.parametrize(("name", "sees"), [("stories-encoder", BOTH), ("stories-decoder", LEFT)])
def test_scores_are_those_of_fill(name: str, sees: str) -> None:
    blank = Blank(0, "The ", "dog", " barked loudly at the mailman.")
    model = load(name)
    [log_prob], [right] = score_blanks(model, [blank], sees)
    shown = compare_fill(model, model, "The [MASK] barked loudly at the mailman.", answer="dog")
    assert shown.models[0].answer is not None
    assert math.exp(log_prob) == pytest.approx(shown.models[0].answer.score, rel=1e-4)
    assert bool(right) == (shown.models[0].predictions[0].token == "dog")


def test_a_hidden_right_side_does_not_count() -> None:
    model = load("stories-encoder")
    [first], _ = score_blanks(model, [Blank(0, "The ", "dog", " barked loudly.")], LEFT)
    [other], _ = score_blanks(model, [Blank(0, "The ", "dog", " sank in the sea.")], LEFT)
    assert first == other


def test_both_sides_predict_better(tmp_path: Path) -> None:
    names = ("dog", "cat", "bird", "fish", "horse")
    text = tmp_path / "held-out.txt"
    places = ("garden", "kitchen", "forest", "river", "school")
    text.write_text(
        "\n\n".join(f"The {n} lived in the {p}. It was old." for n in names for p in places)
    )
    overrides = {"texts": 25, "blanks": 1}
    found = run_study(
        "context", out=tmp_path / "out", text=text, seeds=1, overrides=overrides, workers=1
    )
    rows = {(row["model"], row["context"]): row for row in found.analysis.rows}
    assert len(rows) == 3
    assert found.verdict.name == "context"
    accuracies = [row["accuracy"]["value"] for row in rows.values()]
    assert found.verdict.value == pytest.approx(100 * (accuracies[0] - accuracies[2]))
    assert (tmp_path / "out" / "figure.png").stat().st_size > 1000


def test_decoders_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="both sides"):
        run_study("context", out=tmp_path, models="stories-decoder", seeds=1)


def test_findings_have_different_names_and_corrected_p_values() -> None:
    def scored(rate: float) -> dict[str, Scores]:
        draws = np.random.default_rng(0).random((2, 400)) < rate
        return dict.fromkeys(("accuracy", "log-probability"), Scores(draws, np.ones((2, 400))))

    rates = {("a", BOTH): 0.9, ("a", LEFT): 0.5, ("b", LEFT): 0.6, ("c", LEFT): 0.7}
    found = {
        finding.name: finding for finding in _findings({k: scored(r) for k, r in rates.items()})
    }
    assert list(found) == [
        *("context", "context-log-prob", "context:c", "context:c-log-prob"),
        *("context-hidden", "context-hidden-log-prob", "context-left"),
    ]
    values = [found[name].value for name in ("context", "context:c", "context-hidden")]
    assert values == pytest.approx([30, 20, 40], abs=5)
    assert "b predicts more words than a" in found["context-left"].text
