"""SQuAD metrics: the rules of the official scripts, by hand."""

from __future__ import annotations

import pytest

from firth.metrics.question_answering import normalise_answer, squad_metrics
from firth.utils.errors import InputError, MismatchError, UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Denver Broncos", "denver broncos"),
        ("Levi's Stadium in the San Francisco Bay Area", "levis stadium in san francisco bay area"),
        ("a", ""),
        ("A.", ""),
        ("an apple a day", "apple day"),
        ("Athens, Andes, them", "athens andes them"),  # articles are whole words
        ("$1.2 million", "12 million"),
        ("the-a", "thea"),  # punctuation is removed first
        ("«Ænima» – the album", "«ænima» – album"),  # only ASCII punctuation
        ("  two\n lines\u00a0here ", "two lines here"),
        ("ÉCOLE", "école"),
        ("", ""),
        ("?!", ""),
    ],
)
def test_normalised_answers(text: str, expected: str) -> None:
    assert normalise_answer(text) == expected


def scores(gold: list[str], said: str, version: str | None = None) -> tuple[float, float]:
    found = squad_metrics([gold], [said], version=version)
    return found["exact"].value, pytest.approx(found["f1"].value)


def test_examples_by_hand() -> None:
    gold = ["Denver Broncos", "The Denver Broncos of the AFC"]
    assert scores(gold, "the denver broncos!") == (100, 100)
    # 2 of 3 words are in the first (F1 4/5); the second has 4 words: 2 shared, F1 4/7.
    assert scores(gold, "Denver Broncos won") == (0, 80)
    # 3 of 3 words are in the second, which has 4 ("denver broncos of afc"): F1 6/7.
    assert scores(gold, "Denver Broncos AFC") == (0, 600 / 7)
    assert scores(gold, "") == (0, 0)
    assert scores(["no no yes"], "no yes yes") == (0, 200 / 3)  # repeated words count once each


def test_unanswerable_questions() -> None:
    gold = [[], [], ["Paris"], ["Paris"], ["Paris"]]
    said = ["", "Paris", "Paris", "", "in Paris"]
    found = {name: metric.value for name, metric in squad_metrics(gold, said).items()}
    assert found == pytest.approx(
        {
            "exact": 100 * 2 / 5,
            "f1": 100 * (2 + 2 / 3) / 5,
            "has_answer_exact": 100 / 3,
            "has_answer_f1": 100 * (1 + 2 / 3) / 3,
            "no_answer_exact": 50,
            "no_answer_f1": 50,
        }
    )


def test_versions_differ_for_empty_normalised_answers() -> None:
    """1.1 counts shared words, of which there are none; 2.0 drops such gold answers."""
    assert scores(["The"], "the") == (100, 0)
    assert scores(["The"], "the", "2.0") == (100, 100)
    assert scores(["The", "U2"], "", "1.1") == (100, 0)
    assert scores(["The", "U2"], "", "2.0") == (0, 0)
    assert scores([], "the") == (100, 100)  # the prediction is empty, too


def test_parts_of_version_2() -> None:
    assert set(squad_metrics([["x"]], ["x"])) == {"exact", "f1"}
    parts = squad_metrics([["x"]], ["x"], version="2.0")
    assert set(parts) == {"exact", "f1", "has_answer_exact", "has_answer_f1"}
    assert parts["has_answer_f1"] == parts["f1"]


def test_invalid_inputs_are_errors() -> None:
    with pytest.raises(MismatchError, match="Question 2 has no gold answer"):
        squad_metrics([["x"], []], ["x", ""], version="1.1")
    with pytest.raises(UsageError, match=r"no version '3' of SQuAD; known are 1\.1, 2\.0"):
        squad_metrics([["x"]], ["x"], version="3")
    with pytest.raises(MismatchError, match="1 gold values but 2 predictions"):
        squad_metrics([["x"]], ["x", "y"])
    with pytest.raises(InputError, match="no examples"):
        squad_metrics([], [])
