"""Choices in lists and columns, and what can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.tasks.readers.examples import ChoiceExample
from firth.tasks.readers.table_files import read_choices
from firth.utils.errors import InputError
from tests.tasks.readers.conftest import read

TWO = ChoiceExample(text="Ice is", choices=("hot", "cold"), label=1, line=1)


@pytest.mark.parametrize(
    "row",
    [
        {"text": "Ice is", "choices": ["hot", "cold"], "label": 1},
        {"text": "Ice is", "choices": ["hot", "cold"], "label": 1.0},  # of pandas
        {"text": "Ice is", "choices": ["hot", "cold"], "label": "cold"},
        {"ctx": "Ice is", "endings": ["hot", "cold"], "label": "1"},  # HellaSwag
        {"startphrase": "Ice is", "ending0": "hot", "ending1": "cold", "label": 1},  # SWAG
        {
            "question": "Ice is",
            "choices": {"text": ["hot", "cold"], "label": ["1", "2"]},
            "answerKey": "2",
        },  # ARC
    ],
)
def test_choices(file: Callable[..., Path], row: dict[str, Any]) -> None:
    assert read(read_choices, file("a.jsonl", [row])) == [TWO]


def test_choices_in_tables(file: Callable[..., Path]) -> None:
    lists = file("a.tsv", 'text\tchoices\tlabel\nIce is\t["hot", "cold"]\t1\n')
    columns = file("a.csv", "text,choice_1,choice_0,choice_2,label\nIce is,cold,hot,,cold\n")
    assert [
        (e.text, e.choices, e.label) for path in (lists, columns) for e in read(read_choices, path)
    ] == [("Ice is", ("hot", "cold"), 1)] * 2


def test_the_right_choice_may_be_unknown(file: Callable[..., Path]) -> None:
    path = file("a.jsonl", [{"text": "x", "choices": ["a", "b"], "label": -1}])
    assert read(read_choices, path, labels="optional")[0].label is None
    with pytest.raises(InputError, match="line 1: 'label' is empty"):
        read(read_choices, path)


@pytest.mark.parametrize(
    ("choices", "label", "message"),
    [
        (["a", "b"], 2, "'label' is '2', which names none of the 2 choices"),
        (["a", "b"], "c", "'label' is 'c', which names none"),
        (["a", "b"], True, "names none"),
        (["1", "0"], "1", "names more than one"),
        (["a", "a"], "a", "names more than one"),
        (["a"], 0, "fewer than two"),
        (["a", " "], 0, "a choice is empty"),
        ("a, b", 0, r"'choices' is not a JSON list \('a, b'\)"),
        (7, 0, "'choices' is not a list but int"),
        ({"text": ["a", "b"], "label": ["A"]}, "A", "2 choices but 1 names"),
    ],
)
def test_bad_choices(
    file: Callable[..., Path], choices: object, label: object, message: str
) -> None:
    path = file("a.jsonl", [{"text": "x", "choices": choices, "label": label}])
    with pytest.raises(InputError, match=rf"a\.jsonl line 1: .*{message}"):
        read(read_choices, path)


def test_choices_are_counted_from_0(file: Callable[..., Path]) -> None:
    for names, missing in (("choice_1,choice_2", 0), ("choice_0,choice_9999", 1)):
        path = file("a.csv", f"text,{names},label\nx,a,b,0\n")
        with pytest.raises(InputError, match=f"no choice {missing};"):
            read(read_choices, path)
