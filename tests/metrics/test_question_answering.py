"""SQuAD metrics: the rules of the official scripts, by hand."""

from __future__ import annotations

import pytest

from firth.metrics.question_answering import normalise_answer, squad_metrics
from firth.utils.errors import InputError, MismatchError


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


def scores(gold: list[str], said: str, version_2: bool = False) -> tuple[float, float]:
    """Score one answer; an unanswerable question, answered right, selects SQuAD 2.0's rules."""
    found = squad_metrics([gold] + [[]] * version_2, [said] + [""] * version_2)
    part = "has_answer_" if version_2 else ""
    return found[f"{part}exact"].value, pytest.approx(found[f"{part}f1"].value)


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
    assert set(squad_metrics([["x"]], ["x"])) == {"exact", "f1"}
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
    assert scores(["The"], "the", version_2=True) == (100, 100)
    assert scores(["The", "U2"], "") == (100, 0)
    assert scores(["The", "U2"], "", version_2=True) == (0, 0)
    assert scores([], "the") == (100, 100)  # the prediction is empty, too


def test_invalid_inputs_are_errors() -> None:
    with pytest.raises(MismatchError, match="1 gold values but 2 predictions"):
        squad_metrics([["x"]], ["x", "y"])
    with pytest.raises(InputError, match="no examples"):
        squad_metrics([], [])
