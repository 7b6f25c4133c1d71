"""Prompt templates and the selection of few-shot examples."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from firth import UsageError
from firth.inference.prompting.demonstrations import (
    balanced_shots,
    nearest_shots,
    random_shots,
    tfidf_vectors,
)
from firth.inference.prompting.templates import (
    DEFAULT_CLOZE_TEMPLATES,
    DEFAULT_TEMPLATES,
    make_prompt_format,
    parse_template,
)

# --- templates


def test_few_shot_prompt_of_the_gpt3_paper() -> None:
    """Brown et al. 2020, figure 2.1: few-shot, with a task description."""
    format = make_prompt_format("seq2seq", "{source} => {target}", "Translate English to French:")
    shots = [
        ({"source": "sea otter"}, "loutre de mer"),
        ({"source": "peppermint"}, "menthe poivrée"),
    ]
    before, after = format.prompt(shots, {"source": "cheese"})
    lines = [line for line in before.splitlines() if line]
    assert lines == [
        "Translate English to French:",
        "sea otter => loutre de mer",
        "peppermint => menthe poivrée",
        "cheese => ",
    ]
    assert (after, format.stop) == ("", "\n")


def test_text_after_the_answer_is_the_stop_string() -> None:
    format = make_prompt_format("classify", "{text} It was [MASK], they said.")
    assert format.template.blank
    shown = format.prompt([({"text": "Wow!"}, "great")], {"text": " Meh. "})
    assert shown == ("Wow! It was great, they said.\nMeh. It was ", ", they said.")
    assert format.stop == ", they said."


def test_multiline_examples_are_separated_by_an_empty_line() -> None:
    format = make_prompt_format("pair", r"{text_a}\n{text_b}\tsame? {label}")
    values = {"text_a": "a", "text_b": "b"}
    assert format.prompt([(values, "yes")], values)[0] == "a\nb\tsame? yes\n\na\nb\tsame? "


def test_field_syntax_in_texts_is_literal() -> None:
    template = parse_template("{text}: {label}", "classify")
    assert template.render_example({"text": "{label} {0} {{ %s [MASK]"}, "good") == (
        "{label} {0} {{ %s [MASK]: good"
    )


def test_default_templates_are_valid() -> None:
    for task, text in [*DEFAULT_TEMPLATES.items(), *DEFAULT_CLOZE_TEMPLATES.items()]:
        assert parse_template(text, task).before


@pytest.mark.parametrize(
    ("task", "template", "facts"),
    [
        ("classify", "It is {label}.", ["{text}"]),
        ("classify", "{text} is good", ["no field for the answer", "{label}"]),
        ("classify", "{text} {label} {label}", ["2 fields for the answer", "{label}"]),
        ("classify", "{text} {label} [MASK]", ["2 fields for the answer", "[MASK]"]),
        ("classify", "{text} {lable}", ["unknown field {lable}", "{text}, {label}"]),
        ("classify", "{text} {label", ["Cannot parse"]),
        ("classify", "{} {label}", ["unknown field {}"]),
        ("pair", "{text_a} {label}", ["{text_b}"]),
        ("seq2seq", "{text} {target}", ["unknown field {text}"]),
        ("seq2seq", "", ["no field for the answer", "{target}"]),
    ],
)
def test_invalid_templates(task: str, template: str, facts: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        make_prompt_format(task, template)
    assert all(fact in str(raised.value) for fact in [repr(template), *facts])


# --- selection of examples


def test_random_shots_are_uniform_and_differ_by_draw() -> None:
    drawn = [random_shots(10, 3, draw=draw) for draw in range(2000)]
    assert all(len(set(shots)) == 3 for shots in drawn)
    counts = np.bincount([i for shots in drawn for i in shots], minlength=10)
    expected = 2000 * 3 / 10
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9 degrees, p > 0.001
    assert random_shots(10, 3, seed=1) == random_shots(10, 3, seed=1) != random_shots(10, 3)
    assert sorted(random_shots(4, 4)) == [0, 1, 2, 3]


def test_balanced_shots_have_equal_label_counts() -> None:
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


def test_nearest_shots_have_the_highest_tfidf_cosines() -> None:
    examples = ["the cat sat", "a dog ran", "the dog sat down", "rain, rain, rain", "cat!"]
    questions = ["where is the cat", "it rained: rain"] * 200
    question_vectors, example_vectors = tfidf_vectors(questions, examples)
    vectorizer = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True).fit(examples)
    cosines = (vectorizer.transform(questions) @ vectorizer.transform(examples).T).toarray()
    for row, shots in zip(
        cosines, nearest_shots(question_vectors, example_vectors, 3), strict=True
    ):
        assert sorted(row[shots]) == row[shots].tolist()  # the nearest last
        assert np.allclose(np.sort(row)[-3:], row[shots])
    assert examples[next(nearest_shots(question_vectors, example_vectors, 1))[0]] == "the cat sat"


def test_more_shots_than_examples_are_refused() -> None:
    with pytest.raises(UsageError, match="only 2"):
        random_shots(2, 3)
    with pytest.raises(UsageError, match="no words"):
        tfidf_vectors(["a"], ["", " "])
