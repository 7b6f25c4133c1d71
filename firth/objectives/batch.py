"""Training batches: packed input sequences, their attention pattern and their prediction targets.

    S  sequences     N  tokens of all sequences     M  predicted positions     K  labels

Several sequences share one packed stream and must not attend to each other; `starts` holds the
position at which each begins. A network computes on the packed stream directly (fast on a GPU), or
on padded rows of similar length (fast on a CPU).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from firth.data.packing import PackedSequences
from firth.utils.rng import Bools, Floats, Longs
from firth.utils.streams import bounded_batches


@dataclass(frozen=True)
class PredictionTargets:
    """Targets of one prediction, at some positions of the network's output."""

    positions: Longs  # (M,)
    targets: Longs | Floats  # (M,), or (M, K) for multi-label targets
    # SpanBERT's boundary objective: the positions before and after the span.
    left: Longs | None = None  # (M,)
    right: Longs | None = None  # (M,)
    position_in_span: Longs | None = None  # (M,) 1 for the first token of the span
    weights: Floats | None = None  # (M,) loss weights; None: all 1

    def between(self, first: int, last: int) -> PredictionTargets:
        """Return the targets at positions `first` to `last`, renumbered from 0."""
        inside = (self.positions >= first) & (self.positions < last)

        def shifted(values: Longs | None, by: int = first) -> Longs | None:
            return None if values is None else values[inside] - by

        positions = self.positions[inside] - first
        boundary = shifted(self.left), shifted(self.right), shifted(self.position_in_span, 0)
        weights = None if self.weights is None else self.weights[inside]
        return PredictionTargets(positions, self.targets[inside], *boundary, weights)


@dataclass(frozen=True)
class Batch:
    """Inputs, their attention pattern, and the targets of each prediction.

    `prefix` is the number of tokens at the beginning of each sequence that attend to each other
    bidirectionally; all later tokens attend causally. The whole sequence: an encoder; 0: a decoder;
    in between: a prefix language model. With a `target` stream, the inputs go to the encoder and
    predictions are made at positions of the decoder's stream.
    """

    inputs: PackedSequences
    prefix: Longs  # (S,)
    predictions: dict[str, PredictionTargets] = field(default_factory=dict)
    target: PackedSequences | None = None
    # Sequences that must stay in one batch, such as the choices of one question.
    group_sizes: Longs | None = None  # (groups,) sequences in each group; None: all of size 1

    def attention_mask(self) -> Bools:
        """Return the inputs' attention mask: row i marks what token i attends to."""  # (N, N)
        owners, offsets = self.inputs.owners, self.inputs.offsets
        same = owners[:, None] == owners
        in_prefix = offsets < self.prefix[owners]
        mask: Bools = in_prefix[:, None] & in_prefix  # bidirectional
        mask |= offsets <= offsets[:, None]
        mask &= same
        return mask

    @property
    def output(self) -> PackedSequences:
        """The stream at whose positions predictions are made."""
        return self.inputs if self.target is None else self.target

    @property
    def tokens(self) -> int:
        """Number of tokens in the inputs and the target stream."""
        target = 0 if self.target is None else len(self.target.tokens)
        return len(self.inputs.tokens) + target

    def counts(self) -> dict[str, int]:
        """Return the number of targets of each prediction."""
        return {name: len(prediction.targets) for name, prediction in self.predictions.items()}

    def split(self, max_tokens: int) -> list[Batch]:
        """Split into batches of at most `max_tokens` tokens, or of one longer group of sequences.

        >>> starts, keys = np.array([0, 2, 3, 4]), np.zeros(3, np.uint64)
        >>> stream = PackedSequences(np.array([1, 2, 3, 4]), starts, keys)
        >>> targets = PredictionTargets(positions=np.array([1, 3]), targets=np.array([7, 8]))
        >>> batch = Batch(stream, stream.lengths, {"masked": targets})
        >>> [(part.inputs.tokens.tolist(), part.counts()) for part in batch.split(2)]
        [([1, 2], {'masked': 1}), ([3, 4], {'masked': 1})]
        """
        begins, sizes = self._groups()
        batches = bounded_batches(
            range(len(sizes)), sizes.__getitem__, max_size=max_tokens, max_items=len(sizes)
        )
        parts = list(batches)
        return [self._part(p[0], p[-1] + 1, begins) for p in parts] if len(parts) > 1 else [self]

    def divide(self, count: int) -> list[Batch | None]:
        """Divide into this many parts of about as many tokens each; None: a part has no sequence.

        >>> stream = PackedSequences(np.arange(4), np.array([0, 2, 3, 4]), np.zeros(3, np.uint64))
        >>> batch = Batch(stream, stream.lengths)
        >>> [part and part.inputs.tokens.tolist() for part in batch.divide(2)]
        [[0, 1], [2, 3]]
        """
        if count == 1:
            return [self]
        begins, sizes = self._groups()
        middles = np.cumsum(sizes) - np.array(sizes) / 2
        bounds = np.searchsorted(middles * count / max(1, sum(sizes)), np.arange(count + 1))
        pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        return [self._part(begin, end, begins) if begin < end else None for begin, end in pairs]

    def _groups(self) -> tuple[Longs, list[int]]:
        """Return the first sequence of each group, then their number; and the groups' tokens."""
        lengths = self.inputs.lengths + (0 if self.target is None else self.target.lengths)
        begins = np.arange(len(lengths) + 1)
        if self.group_sizes is not None:
            begins = np.concatenate([[0], np.cumsum(self.group_sizes)])
        sizes = np.diff(np.concatenate([[0], np.cumsum(lengths)])[begins])
        return begins, sizes.tolist()

    def _part(self, begin: int, end: int, begins: Longs) -> Batch:
        """Return groups `begin` to `end` as a batch."""
        group_sizes = None if self.group_sizes is None else self.group_sizes[begin:end]
        begin, end = begins[[begin, end]].tolist()
        first, last = self.output.starts[[begin, end]]
        predictions = {name: p.between(first, last) for name, p in self.predictions.items()}
        target = None if self.target is None else self.target.between(begin, end)
        prefix = self.prefix[begin:end]
        return Batch(self.inputs.between(begin, end), prefix, predictions, target, group_sizes)


def encoder_decoder_batch(
    inputs: PackedSequences, labels: Longs, sizes: Longs, *, start: int, name: str
) -> Batch:
    """Give the inputs to the encoder, and the labels shifted right by one to the decoder."""
    target = PackedSequences.of_sizes(labels, sizes, inputs.keys)
    shifted = np.roll(labels, 1)
    shifted[target.starts[:-1]] = start
    prediction = PredictionTargets(np.arange(len(labels)), labels)
    return Batch(inputs, inputs.lengths, {name: prediction}, target.with_tokens(shifted))


def append_token(tokens: Longs, sizes: Longs, token: Longs | int) -> tuple[Longs, Longs]:
    """Append a token to each of the packed sequences of these sizes; return both anew.

    >>> append_token(np.array([1, 2, 3]), np.array([2, 1]), 9)
    (array([1, 2, 9, 3, 9]), array([3, 2]))
    """
    return np.insert(tokens, np.cumsum(sizes), token), sizes + 1
