"""Prompts in words, and which examples they show: literals and counting by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from firth import Misuse
from firth.inference.prompt import USUAL, USUAL_CLOZE, make_wording, parse_template
from firth.inference.shots import balanced_shots, nearest_shots, random_shots, word_vectors

# --- wording


def test_the_figure_of_the_paper() -> None:
    """Brown et al. 2020, figure 2.1: few-shot, with a task description."""
    wording = make_wording("seq2seq", "{source} => {target}", "Translate English to French:")
    shots = [
        ({"source": "sea otter"}, "loutre de mer"),
        ({"source": "peppermint"}, "menthe poivrée"),
    ]
    before, after = wording.prompt(shots, {"source": "cheese"})
    lines = [line for line in before.splitlines() if line]
    assert lines == [
        "Translate English to French:",
        "sea otter => loutre de mer",
        "peppermint => menthe poivrée",
        "cheese => ",
    ]
    assert (after, wording.stop) == ("", "\n")


def test_what_stands_behind_the_answer_closes_examples_and_ends_answers() -> None:
    wording = make_wording("classify", "{text} It was [MASK], they said.")
    assert wording.template.blank
    shown = wording.prompt([({"text": "Wow!"}, "great")], {"text": " Meh. "})
    assert shown == ("Wow! It was great, they said.\nMeh. It was ", ", they said.")
    assert wording.stop == ", they said."


def test_an_empty_line_stands_between_examples_of_several_lines() -> None:
    wording = make_wording("pair", r"{text_a}\n{text_b}\tsame? {label}")
    values = {"text_a": "a", "text_b": "b"}
    assert wording.prompt([(values, "yes")], values)[0] == "a\nb\tsame? yes\n\na\nb\tsame? "


def test_texts_that_look_like_fields_are_texts() -> None:
    template = parse_template("{text}: {label}", "classify")
    assert template.whole({"text": "{label} {0} {{ %s [MASK]"}, "good") == (
        "{label} {0} {{ %s [MASK]: good"
    )


def test_every_usual_template_is_one() -> None:
    for task, text in [*USUAL.items(), *USUAL_CLOZE.items()]:
        assert parse_template(text, task).before


@pytest.mark.parametrize(
    ("task", "template", "complaint"),
    [
        ("classify", "It is {label}.", "does not show {text}"),
        ("classify", "{text} is good", "no place for the answer"),
        ("classify", "{text} {label} {label}", "2 places for the answer"),
        ("classify", "{text} {label} [MASK]", "2 places for the answer"),
        ("classify", "{text} {lable}", "no field {lable}; there are {text}, {label}"),
        ("classify", "{text} {label", "cannot be read"),
        ("classify", "{} {label}", "no field {}"),
        ("pair", "{text_a} {label}", "does not show {text_b}"),
        ("seq2seq", "{text} {target}", "no field {text}"),
        ("seq2seq", "", "no place for the answer"),
    ],
)
def test_templates_that_cannot_be_right(task: str, template: str, complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint.replace("{", r"\{")):
        make_wording(task, template)


# --- which examples


def test_random_shots_are_all_equally_likely_and_other_ones_in_each_draw() -> None:
    drawn = [random_shots(10, 3, draw=draw) for draw in range(2000)]
    assert all(len(set(shots)) == 3 for shots in drawn)
    counts = np.bincount([i for shots in drawn for i in shots], minlength=10)
    expected = 2000 * 3 / 10
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9 degrees, p > 0.001
    assert random_shots(10, 3, seed=1) == random_shots(10, 3, seed=1) != random_shots(10, 3)
    assert sorted(random_shots(4, 4)) == [0, 1, 2, 3]


def test_balanced_shots_hold_as_many_of_each_label() -> None:
    labels = ["a"] * 50 + ["b"] * 7 + ["c"] * 2
    for draw in range(20):
        shots = balanced_shots(labels, 6, draw=draw)
        assert Counter(labels[i] for i in shots) == {"a": 2, "b": 2, "c": 2}
        counts = Counter(labels[i] for i in balanced_shots(labels, 7, draw=draw))
        assert counts["c"] == 2  # there are no more
        assert sorted(counts.values()) == [2, 2, 3]
    firsts = Counter(labels[balanced_shots(labels, 6, draw=draw)[0]] for draw in range(600))
    assert min(firsts.values()) > 140  # of 200: no label stands first because of its name
    ones = Counter(labels[balanced_shots(labels, 1, draw=draw)[0]] for draw in range(600))
    assert set(ones) == {"a", "b", "c"}


def test_nearest_shots_by_words_are_those_of_the_whole_product() -> None:
    examples = ["the cat sat", "a dog ran", "the dog sat down", "rain, rain, rain", "cat!"]
    questions = ["where is the cat", "it rained: rain"] * 200
    asked, shown = word_vectors(questions, examples)
    made = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True).fit(examples)
    alike = (made.transform(questions) @ made.transform(examples).T).toarray()
    for row, shots in zip(alike, nearest_shots(asked, shown, 3), strict=True):
        assert sorted(row[shots]) == row[shots].tolist()  # the nearest last
        assert np.allclose(np.sort(row)[-3:], row[shots])
    assert examples[next(nearest_shots(asked, shown, 1))[0]] == "the cat sat"


def test_more_shots_than_examples_are_refused() -> None:
    with pytest.raises(Misuse, match="only 2"):
        random_shots(2, 3)
    with pytest.raises(Misuse, match="no words"):
        word_vectors(["a"], ["", " "])
