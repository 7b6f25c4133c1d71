"""What an objective is given and what it returns: sequences end to end, and what to predict.

    S  sequences     N  tokens of all of them     M  positions that are predicted

Several sequences share one stream and must not see each other; `starts` says where each begins.
From this one description a network takes the packed stream that a GPU likes, or the rows of similar
length that a CPU likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from firth.draws import Bools, Floats, Keys, Longs


@dataclass(frozen=True)
class Packed:
    """Sequences of tokens, end to end."""

    tokens: Longs  # (N,)
    starts: Longs  # (S + 1,) where each sequence begins; the end
    keys: Keys  # (S,) the randomness of each sequence
    segments: Longs | None = None  # (N,) 0 for the first text of a pair, 1 for the second
    sentences: Longs | None = None  # (K,) where sentences begin, counted through the stream

    @cached_property
    def lengths(self) -> Longs:
        """How many tokens each sequence has."""  # (S,)
        return np.diff(self.starts)

    @cached_property
    def owners(self) -> Longs:
        """The sequence each token belongs to."""  # (N,)
        return np.repeat(np.arange(len(self.keys)), self.lengths)

    @cached_property
    def offsets(self) -> Longs:
        """The place of each token in its sequence."""  # (N,)
        return np.arange(len(self.tokens)) - self.starts[self.owners]

    def rows(self) -> list[Longs]:
        """Each sequence by itself."""
        return np.split(self.tokens, self.starts[1:-1])

    @classmethod
    def join(cls, rows: Sequence[Longs], keys: Keys) -> Packed:
        """Sequences, put end to end."""
        tokens = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        return cls(tokens, np.cumsum([0, *map(len, rows)]), keys)

    def select(self, wanted: Bools) -> Packed:
        """Only the wanted sequences."""
        if wanted.all():
            return self
        rows = [row for row, is_wanted in zip(self.rows(), wanted, strict=True) if is_wanted]
        return Packed.join(rows, self.keys[wanted])

    def between(self, begin: int, end: int) -> Packed:
        """Sequences `begin` to `end`."""
        first, last = self.starts[[begin, end]]
        segments = None if self.segments is None else self.segments[first:last]
        starts = self.starts[begin : end + 1] - first
        return Packed(self.tokens[first:last], starts, self.keys[begin:end], segments)

    def with_tokens(self, tokens: Longs) -> Packed:
        """The same sequences with other tokens in the same places."""
        return replace(self, tokens=tokens)


@dataclass(frozen=True)
class Prediction:
    """One thing to be predicted, at some positions of the stream that the network's output has."""

    positions: Longs  # (M,)
    targets: Longs | Floats  # (M,) or, where several may hold at once, (M, K)
    # SpanBERT's boundary objective: the positions beside the span, and the place inside it.
    left: Longs | None = None  # (M,)
    right: Longs | None = None  # (M,)
    place: Longs | None = None  # (M,) 1 for the first token of the span
    weights: Floats | None = None  # (M,) how much each counts; None: 1

    def between(self, first: int, last: int) -> Prediction:
        """Those at positions from `first` to `last`, counted from there."""
        inside = (self.positions >= first) & (self.positions < last)

        def moved(values: Longs | None, by: int = first) -> Longs | None:
            return None if values is None else values[inside] - by

        positions = self.positions[inside] - first
        beside = moved(self.left), moved(self.right), moved(self.place, 0)
        weights = None if self.weights is None else self.weights[inside]
        return Prediction(positions, self.targets[inside], *beside, weights)


@dataclass(frozen=True)
class Batch:
    """Inputs, who may see whom, and what is to be predicted.

    `prefix` is the whole of the attention pattern: so many tokens at the beginning of a sequence
    see each other both ways, the rest sees what stands before it. All of a sequence: an encoder;
    nothing: a decoder; a part: a prefix language model. With a `target` stream, the inputs go to
    an encoder and the predictions are positions of the decoder's stream.
    `units` says which sequences belong together, such as the choices of one question.
    """

    inputs: Packed
    prefix: Longs  # (S,)
    predictions: dict[str, Prediction] = field(default_factory=dict)
    target: Packed | None = None
    units: Longs | None = None  # (U,) sequences of each; None: every sequence by itself

    def visible(self) -> Bools:
        """Who may see whom among the inputs: row i is what token i may attend to."""  # (N, N)
        owners, offsets = self.inputs.owners, self.inputs.offsets
        same = owners[:, None] == owners
        in_prefix = offsets < self.prefix[owners]
        seen: Bools = in_prefix[:, None] & in_prefix  # both ways
        seen |= offsets <= offsets[:, None]
        seen &= same
        return seen

    @property
    def output(self) -> Packed:
        """The stream whose positions are predicted."""
        return self.inputs if self.target is None else self.target

    @property
    def tokens(self) -> int:
        """How many tokens the network reads, on both sides."""
        target = 0 if self.target is None else len(self.target.tokens)
        return len(self.inputs.tokens) + target

    def counts(self) -> dict[str, int]:
        """How many predictions of each kind there are."""
        return {name: len(prediction.targets) for name, prediction in self.predictions.items()}

    def split(self, most: int) -> list[Batch]:
        """The same sequences in several batches of at most `most` tokens, or of one sequence.

        >>> stream = Packed(np.array([1, 2, 3, 4]), np.array([0, 2, 3, 4]), np.zeros(3, np.uint64))
        >>> asked = Prediction(positions=np.array([1, 3]), targets=np.array([7, 8]))
        >>> batch = Batch(stream, stream.lengths, {"masked": asked})
        >>> [(part.inputs.tokens.tolist(), part.counts()) for part in batch.split(2)]
        [([1, 2], {'masked': 1}), ([3, 4], {'masked': 1})]
        """
        lengths = self.inputs.lengths + (0 if self.target is None else self.target.lengths)
        begins = np.arange(len(lengths) + 1)
        if self.units is not None:
            begins = np.concatenate([[0], np.cumsum(self.units)])
        sizes = np.diff(np.concatenate([[0], np.cumsum(lengths)])[begins])
        parts, begin, size = [], 0, 0
        for end, length in enumerate(sizes.tolist()):
            if end > begin and size + length > most:
                parts.append(self._part(begin, end, begins))
                begin, size = end, 0
            size += length
        return [*parts, self._part(begin, len(sizes), begins)] if begin else [self]

    def _part(self, begin: int, end: int, begins: Longs) -> Batch:
        """Units `begin` to `end` as a batch of their own."""
        units = None if self.units is None else self.units[begin:end]
        begin, end = begins[[begin, end]].tolist()
        first, last = self.output.starts[[begin, end]]
        predictions = {name: p.between(first, last) for name, p in self.predictions.items()}
        target = None if self.target is None else self.target.between(begin, end)
        prefix = self.prefix[begin:end]
        return Batch(self.inputs.between(begin, end), prefix, predictions, target, units)
