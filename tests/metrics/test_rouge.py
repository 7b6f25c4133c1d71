"""ROUGE: the examples of Lin (2004), and longest common subsequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.metrics.rouge import common_places, rouge_metrics


def score(reference: str | list[str], said: str) -> dict[str, float]:
    return {name: metric.value for name, metric in rouge_metrics([reference], [said]).items()}


def test_sentence_examples_of_lin() -> None:
    """§3.1: S2 has 3 words of S1 in order, S3 two; both share one pair of words."""
    reference = "police killed the gunman"
    second = score(reference, "police kill the gunman")
    third = score(reference, "the gunman kill police")
    assert (second["rougeL"], third["rougeL"]) == (3 / 4, 2 / 4)
    assert second["rouge2"] == third["rouge2"] == pytest.approx(1 / 3)
    assert second["rouge1"] == third["rouge1"] == 3 / 4


def test_summary_example_of_lin() -> None:
    """§3.2: w1 w2 with the first sentence, w1 w3 w5 with the second: four words of five."""
    found = score("w1 w2 w3 w4 w5", "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5")
    precision, recall = 4 / 10, 4 / 5
    assert found["rougeLsum"] == pytest.approx(2 * precision * recall / (precision + recall))


def test_best_of_several_references() -> None:
    found = score(["a b", "b c a d"], "a b c d")
    assert found["rouge1"] == 1.0
    assert found["rougeL"] == pytest.approx(3 / 4)
    assert found["rouge2"] == pytest.approx(2 * 1 / (1 + 3))


def test_case_punctuation_and_empty_texts() -> None:
    assert score("It's 5 o'clock!", "it s 5 O CLOCK") == pytest.approx(
        dict(rouge1=1, rouge2=1, rougeL=1, rougeLsum=1)
    )
    for reference, said in [("", ""), ("a", ""), ("", "a"), ("...", "..."), ("नमस्ते", "नमस्ते")]:
        assert set(score(reference, said).values()) == {0}


@given(*[st.text("abc", max_size=40)] * 2)
def test_longest_common_subsequence(true: str, said: str) -> None:
    """Compare with the textbook algorithm."""
    table = [[0] * (len(said) + 1) for _ in range(len(true) + 1)]
    for i, a in enumerate(true, start=1):
        for j, b in enumerate(said, start=1):
            longer = table[i - 1][j - 1] + 1
            table[i][j] = longer if a == b else max(table[i - 1][j], table[i][j - 1])
    found = [true[place] for place in sorted(common_places(true, said))]
    assert len(found) == table[-1][-1]
    rest = iter(said)
    assert all(item in rest for item in found)
