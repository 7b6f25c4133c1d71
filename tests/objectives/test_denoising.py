"""T5 and BART: published lengths, statistics, and that the text can be had back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firth.data.packing import PackedSequences
from firth.objectives.denoising import infilling, raw_length, span_corruption
from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.errors import UsageError
from firth.utils.rng import derive_keys


def test_the_literals_of_the_docstrings() -> None:
    text = packed("thank you for invit ##ing me to your party")
    batch = span_corruption(text, VOCABULARY, noise_density=0.35, mean_span_length=1.5)
    assert words(batch.inputs) == ["thank you for invit <extra_id_0> to your <extra_id_1> [SEP]"]
    assert predicted(batch, "denoising") == "<extra_id_0> ##ing me <extra_id_1> party [SEP]"
    batch = infilling(packed("the dog barked . a fox jump ##s over it ."), VOCABULARY)
    assert words(batch.inputs) == ["[CLS] a fox jump ##s over it . [MASK] . [SEP]"]
    whole = "[CLS] the dog barked . a fox jump ##s over it . [SEP]"
    assert predicted(batch, "denoising") == whole


def test_568_tokens_give_512_and_114(vocabulary: Vocabulary) -> None:
    """The lengths of T5's released data code for inputs of 512."""
    row = np.arange(568) % 800 + 5
    batch = span_corruption(PackedSequences.join([row], derive_keys(0, [0])), vocabulary)
    assert batch.target is not None
    assert (len(batch.inputs.tokens), len(batch.target.tokens)) == (512, 114)
    assert raw_length(512) == 568
    closed = span_corruption(
        PackedSequences.join([row], derive_keys(0, [0])), vocabulary, final_sentinel=True
    )
    assert closed.target is not None
    assert len(closed.target.tokens) == 115
    assert closed.predictions["denoising"].targets[-2:].tolist() == [999 - 28, 3]


def restored(inputs: np.ndarray, labels: np.ndarray, sentinels: np.ndarray) -> list[int]:
    """Put the spans back, reading as a person would."""
    spans: dict[int, list[int]] = {}
    for token in labels[:-1]:
        if token in sentinels:
            spans[int(token)] = []
        else:
            spans[list(spans)[-1]].append(int(token))
    text: list[int] = []
    for token in inputs[:-1]:
        text += spans.get(int(token), [int(token)])
    return text


def test_the_text_can_be_put_together_again(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = span_corruption(bare_million, vocabulary)
    assert batch.target is not None
    labels = np.split(batch.predictions["denoising"].targets, batch.target.starts[1:-1])
    rows = zip(batch.inputs.rows(), labels, bare_million.rows(), strict=True)
    for i, (inputs, asked, original) in enumerate(rows):
        assert inputs[-1] == asked[-1] == 3  # both end with the end token
        if i < 300:
            assert restored(inputs, asked, vocabulary.sentinels) == original.tolist()
    # The decoder reads its targets one step behind, beginning with the pad token (T5).
    shifted = batch.target.rows()
    assert all(row[0] == 0 for row in shifted)
    np.testing.assert_array_equal(shifted[0][1:], labels[0][:-1])


def test_rate_and_span_lengths_over_a_million_tokens(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = span_corruption(bare_million, vocabulary)
    labels = batch.predictions["denoising"].targets
    is_sentinel = np.isin(labels, vocabulary.sentinels)
    taken = len(labels) - is_sentinel.sum() - len(bare_million.keys)
    assert taken / len(bare_million.tokens) == pytest.approx(0.15, abs=0.002)
    assert taken / is_sentinel.sum() == pytest.approx(3.0, abs=0.1)
    sentinels_read = np.isin(batch.inputs.tokens, vocabulary.sentinels).sum()
    assert sentinels_read == is_sentinel.sum()


def test_the_first_span_begins_anywhere_but_first(vocabulary: Vocabulary) -> None:
    """As in T5: a text begins with kept tokens and ends with a span."""
    rows = PackedSequences.join([np.arange(5, 25)] * 2000, derive_keys(0, np.arange(2000)))
    batch = span_corruption(rows, vocabulary)
    for inputs in batch.inputs.rows():
        assert inputs[0] == 5
        assert inputs[-2] in vocabulary.sentinels


def test_infilling_hides_its_share_behind_single_masks(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = infilling(bare_million, vocabulary, shuffle=False)
    masks = (batch.inputs.tokens == 4).sum()
    hidden = len(bare_million.tokens) - (len(batch.inputs.tokens) - masks - 2 * len(batch.prefix))
    assert hidden / len(bare_million.tokens) == pytest.approx(0.3, abs=0.005)
    assert hidden / masks == pytest.approx(3.0, abs=0.15)  # Poisson, the last one cut short
    assert batch.target is not None
    labels = np.split(batch.predictions["denoising"].targets, batch.target.starts[1:-1])
    for asked, original in zip(labels[:500], bare_million.rows(), strict=False):
        assert asked.tolist() == [2, *original, 3]
    # What is not hidden stands in its order.
    for inputs, original in zip(batch.inputs.rows()[:200], bare_million.rows(), strict=False):
        left = iter(original.tolist())
        assert all(token in left for token in inputs[1:-1].tolist() if token != 4)


def test_span_lengths_are_poisson(vocabulary: Vocabulary) -> None:
    """One long text of different tokens shows the length of every span."""
    row = np.arange(5, 895)
    rows = PackedSequences.join([row] * 400, derive_keys(7, np.arange(400)))
    lengths: list[int] = []
    for inputs in infilling(rows, vocabulary, shuffle=False).inputs.rows():
        kept = np.concatenate(([4], inputs[1:-1], [895]))
        places = np.flatnonzero(kept == 4)[1:]
        for place in places[:-1]:  # a neighbouring mask hides where one span ends
            if kept[place - 1] != 4 and kept[place + 1] != 4:
                lengths.append(int(kept[place + 1] - kept[place - 1] - 1))
    shares = np.bincount(lengths, minlength=12)[:12] / len(lengths)
    expected = [np.exp(-3) * 3**k / np.prod(np.arange(1, k + 1)) for k in range(12)]
    np.testing.assert_allclose(shares, expected, atol=0.015)


def test_sentences_are_shuffled_whole(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = infilling(bare_million, vocabulary, noise_density=0.0)
    moved = 0
    for inputs, original in zip(batch.inputs.rows()[:300], bare_million.rows(), strict=False):
        cut = lambda row: [tuple(row[i : i + 10]) for i in range(0, len(row), 10)]  # noqa: E731
        sentences = cut(original.tolist())
        text = inputs[1:-1].tolist()
        assert sorted(text) == sorted(original.tolist())
        joined = " ".join(map(str, text))
        assert all(" ".join(map(str, sentence)) in joined for sentence in sentences)
        moved += text != original.tolist()
    assert moved > 250
    with pytest.raises(UsageError, match="sentence"):
        infilling(replace(bare_million, sentences=None), vocabulary)


def test_damaged_texts_are_never_longer_than_asked_for(vocabulary: Vocabulary) -> None:
    for length in range(3, 40):
        raw = raw_length(length)
        rows = PackedSequences.join([np.arange(5, 5 + raw)] * 300, derive_keys(0, np.arange(300)))
        assert span_corruption(rows, vocabulary).inputs.lengths.max() <= length
        filled = infilling(rows, vocabulary, shuffle=False)
        assert filled.inputs.lengths.max() <= raw + 2
    with pytest.raises(UsageError, match="at least 3"):
        raw_length(2)
    with pytest.raises(UsageError, match="at least 4"):
        raw_length(3, final_sentinel=True)


@pytest.mark.parametrize("final_sentinel", [False, True])
@pytest.mark.parametrize("mean_span_length", [1.0, 3.0, 20.0])
@pytest.mark.parametrize("noise_density", [0.0, 0.05, 0.15, 0.5, 0.9, 1.0])
def test_as_much_text_as_fits(
    noise_density: float, mean_span_length: float, final_sentinel: bool, vocabulary: Vocabulary
) -> None:
    """On both sides, whatever is asked; one token more would be too many."""
    options: dict[str, Any] = {
        "noise_density": noise_density,
        "mean_span_length": mean_span_length,
        "final_sentinel": final_sentinel,
    }

    def longest(size: int) -> int:
        rows = PackedSequences.join([np.arange(5, 5 + size)], derive_keys(0, [0]))
        batch = span_corruption(rows, vocabulary, **options)
        return int(max(batch.inputs.lengths.max(), batch.output.lengths.max()))

    for length in (4, 5, 17, 64):
        raw = raw_length(length, **options)
        assert all(longest(size) <= length for size in range(2, raw + 1))
        assert longest(raw + 1) > length


def test_too_few_sentinels_wrong_options_and_too_short_texts(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    few = replace(vocabulary, sentinels=vocabulary.sentinels[:3])
    with pytest.raises(UsageError, match=r"12 sentinel .* 3.* --sentinels 100"):
        span_corruption(bare_million, few)
    for options in ({"noise_density": -0.1}, {"noise_density": 1.1}, {"mean_span_length": 0.0}):
        for objective in (span_corruption, infilling):
            with pytest.raises(UsageError, match=r"noise_density .* mean_span_length"):
                objective(bare_million, vocabulary, **options)
    rows = PackedSequences.join([np.array([7]), np.array([8, 9])], derive_keys(0, np.arange(2)))
    batch = span_corruption(rows, vocabulary)
    assert batch.inputs.rows()[0].tolist() == [8, 999, 3]
    assert batch.predictions["denoising"].targets.tolist() == [999, 9, 3]
