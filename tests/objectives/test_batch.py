"""Batches: attention masks, splitting and selection."""

from __future__ import annotations

import numpy as np
import pytest

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch
from firth.objectives.masked import masked_spans
from firth.objectives.pairs import sentence_order
from firth.objectives.toy_vocabulary import VOCABULARY, packed


@pytest.mark.parametrize(
    ("prefix", "pattern"),
    [
        ([3, 2], ["11100", "11100", "11100", "00011", "00011"]),  # encoder
        ([0, 0], ["10000", "11000", "11100", "00010", "00011"]),  # decoder
        ([2, 1], ["11000", "11000", "11100", "00010", "00011"]),  # prefix
    ],
)
def test_attention_mask(prefix: list[int], pattern: list[str]) -> None:
    """Compare the masks of two packed texts with those drawn by hand."""
    batch = Batch(packed("the dog barked", "a fox"), np.array(prefix))
    assert ["".join("01"[int(x)] for x in row) for row in batch.attention_mask()] == pattern


@pytest.mark.parametrize("max_tokens", [1, 12, 20, 1000])
def test_split_keeps_sequences_and_targets(max_tokens: int) -> None:
    texts = [
        "[CLS] the quick brown fox jump ##s over the lazy dog [SEP]",
        "[CLS] a lazy dog barked . [SEP]",
        "[CLS] thank you for invit ##ing me to your party [SEP]",
    ]
    batch = masked_spans(packed(*texts), VOCABULARY, mask_prob=0.4)
    parts = batch.split(max_tokens)
    assert len(parts) == {1: 3, 12: 3, 20: 2, 1000: 1}[max_tokens]
    joined = np.concatenate([part.inputs.tokens for part in parts])
    assert joined.tolist() == batch.inputs.tokens.tolist()
    assert sum(part.tokens for part in parts) == batch.tokens
    for name in batch.predictions:
        assert [row for part in parts for row in targets_of(part, name)] == targets_of(batch, name)


def targets_of(batch: Batch, name: str) -> list[tuple[int, ...]]:
    """List the input token, the target and the boundary tokens of each prediction."""
    tokens, prediction = batch.inputs.tokens, batch.predictions[name]
    boundary = (tokens[p].tolist() for p in (prediction.left, prediction.right) if p is not None)
    return [*zip(tokens[prediction.positions], prediction.targets, *boundary, strict=True)]


def test_split_keeps_segments_and_labels() -> None:
    firsts = packed("the dog barked", "a fox", "thank you")
    seconds = packed("it jump ##s", "the lazy dog", "for me")
    batch = sentence_order(firsts, seconds, VOCABULARY, length=16)
    parts = batch.split(1)
    assert [part.counts() for part in parts] == [{"sentence order": 1}] * 3
    for part in parts:
        assert part.inputs.segments is not None
        assert len(part.inputs.segments) == part.tokens
        assert part.predictions["sentence order"].positions.tolist() == [0]
    answers = [int(part.predictions["sentence order"].targets[0]) for part in parts]
    assert answers == batch.predictions["sentence order"].targets.tolist()


def test_select_keeps_tokens_and_keys() -> None:
    stream = PackedSequences.join(
        [np.array([1, 2]), np.array([3]), np.array([4, 5])], np.array([7, 8, 9], np.uint64)
    )
    chosen = stream.select(np.array([True, False, True]))
    assert [row.tolist() for row in chosen.rows()] == [[1, 2], [4, 5]]
    assert chosen.keys.tolist() == [7, 9]
