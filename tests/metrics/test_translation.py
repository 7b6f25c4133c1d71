"""BLEU and chrF: examples by hand."""

from __future__ import annotations

import math

import pytest

from firth.metrics.translation import tokenize_13a, translation_metrics
from firth.utils.errors import MismatchError


def test_bleu_of_papineni() -> None:
    """Example 2 of Papineni et al. 2002: 2 of 7 words match; no longer run does (1/2, 1/4, 1/8)."""
    references = ["The cat is on the mat.", "There is a cat on the mat."]
    said = "the the the the the the the"
    precisions = [2 / 7, 1 / 2 / 6, 1 / 4 / 5, 1 / 8 / 4]
    lower = [text.lower().replace(".", "") for text in references]
    found = translation_metrics([lower], [said])["bleu"].value
    assert found == pytest.approx(100 * math.prod(precisions) ** (1 / 4))


def test_brevity_penalty() -> None:
    """All runs of 5 words match, but the reference has 8: exp(1 - 8/5)."""
    found = translation_metrics(["a b c d e f g h"], ["a b c d e"])["bleu"].value
    assert found == pytest.approx(100 * math.exp(1 - 8 / 5))


def test_reference_length_is_the_nearest() -> None:
    six, four = "a b c d e f", "a b c d"
    for references, expected in (([six, four], 100), ([six, six], 100 * math.exp(1 - 6 / 5))):
        found = translation_metrics([references], ["a b c d e"])["bleu"].value
        assert found == pytest.approx(expected)


def test_bleu_sums_over_the_corpus() -> None:
    """Matches and runs are summed first: 4 + 0, 3 + 0, 2 + 0 and 1 + 0 of 8, 6, 4 and 2."""
    found = translation_metrics(["a b c d", "e f g h"], ["a b c d", "w x y z"])["bleu"].value
    assert found == pytest.approx(50)


def test_chrf_by_hand() -> None:
    """abd for abc: 2/3 of the characters, 1/2 of the pairs, none of the triples, each way."""
    found = translation_metrics(["a bc"], ["ab d"])["chrf"].value
    assert found == pytest.approx(100 * (2 / 3 + 1 / 2) / 3)
    # Precision 1 for ab; recall (2/3 + 1/2) / 2: the third order has no run of two characters.
    recall = (2 / 3 + 1 / 2) / 2
    expected = 100 * 5 * recall / (4 + recall)
    assert translation_metrics(["abc"], ["ab"])["chrf"].value == pytest.approx(expected)


def test_empty_texts_score_0() -> None:
    for reference, said in [("", ""), ("a b c d", ""), ("", "a b c d"), (" \n", "\t")]:
        found = translation_metrics([reference], [said])
        assert (found["bleu"].value, found["chrf"].value) == (0, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, world.", "Hello , world ."),
        ("3.14 and 1,000.", "3.14 and 1,000 ."),
        ("2001-2002 re-read", "2001 - 2002 re-read"),
        ("don't (ever)", "don't ( ever )"),
        ("&lt;b&gt; AT&amp;T", "< b > AT & T"),
        ("a<skipped>b", "ab"),
        ("hyphen-\nated\nlines", "hyphenated lines"),
        ("¿qué?", "¿qué ?"),
    ],
)
def test_tokenization_of_mteval(text: str, words: str) -> None:
    assert tokenize_13a(text) == words.split()


def test_invalid_inputs_are_errors() -> None:
    with pytest.raises(MismatchError, match="Example 2 has no reference"):
        translation_metrics(["a", []], ["a", "b"])
    with pytest.raises(MismatchError, match="1 gold values but 2 predictions"):
        translation_metrics(["a"], ["a", "b"])
