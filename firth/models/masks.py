"""Who may see whom: a small description of a flat stream, lowered in `attention.py`.

    S  sequences     N  tokens of all of them     L  tokens of the longest

Every network here takes its tokens as one flat stream; a mask says where each sequence begins and
how much of it sees forward. That is all that makes an encoder, a decoder or a prefix language
model. Where a boolean appears, True = may attend.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firth.models.journey import as_tensor

Lengths = Sequence[int] | NDArray[np.int64]

# Sequences at least this long, compared with the longest of their group, are padded up to it,
CLOSE = 0.5
# and all of them to the longest of all when that makes the stream no longer than this.
LONGER = 1.5


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (places,), gradient = ctx.saved_tensors, gradients[0]
        whole = gradient.new_zeros(ctx.rows, *gradient.shape[1:])
        return whole.index_copy_(0, places, gradient), None


def take(x: Tensor, places: Tensor) -> Tensor:
    """Rows of a tensor, each at most once: so its gradient is copied, where torch would add."""
    return _Take.apply(x, places)  # type: ignore[no-untyped-call]


class Mask:
    """The sequences of a flat stream, and how many tokens at the start of each see both ways.

    >>> Mask([3, 2], device="cpu").pattern, Mask([3, 2], prefix=[0, 0], device="cpu").pattern
    ('full', 'causal')
    >>> Mask([3], prefix=[2], device="cpu").visible().int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        prefix: Lengths | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """`prefix`: (S,) tokens that see both ways; None: all of them, 0: a decoder's."""
        self.lengths: NDArray[np.int64] = np.asarray(lengths, dtype=np.int64)  # (S,)
        self.device = torch.device(device)
        seen = self.lengths if prefix is None else np.asarray(prefix, dtype=np.int64)
        self._prefix = np.minimum(seen, self.lengths)
        self._behind: dict[int, tuple[Mask, Tensor]] = {}  # what `behind` made
        if (self._prefix >= self.lengths).all():
            self.pattern = "full"
        else:  # one token that sees itself is the same either way
            self.pattern = "prefix" if (self._prefix > 1).any() else "causal"

    @classmethod
    def causal(cls, lengths: Lengths, device: torch.device | str = "cpu") -> Mask:
        """Every token sees itself and what stands before it."""
        return cls(lengths, prefix=np.zeros(len(lengths), np.int64), device=device)

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def tokens(self) -> int:
        """How many tokens the stream has."""
        return int(self.lengths.sum())

    @cached_property
    def longest(self) -> int:
        """The length of the longest sequence."""
        return int(self.lengths.max(initial=0))

    def _tensor(self, values: NDArray[Any], dtype: torch.dtype = torch.long) -> Tensor:
        return as_tensor(values, self.device, dtype)

    @cached_property
    def starts(self) -> Tensor:
        """Where each sequence begins, and the end, as the packed kernels want it."""  # (S + 1,)
        return self._tensor(np.concatenate([[0], np.cumsum(self.lengths)]), torch.int32)

    @cached_property
    def sizes(self) -> Tensor:
        """The length of each sequence."""  # (S,)
        return self._tensor(self.lengths)

    @cached_property
    def owners(self) -> Tensor:
        """The sequence of each token."""  # (N,)
        return self._tensor(np.repeat(np.arange(len(self)), self.lengths))

    @cached_property
    def offsets(self) -> Tensor:
        """The place of each token in its sequence."""  # (N,)
        begins = np.cumsum(self.lengths) - self.lengths
        return self._tensor(np.arange(self.tokens) - np.repeat(begins, self.lengths))

    @cached_property
    def prefix(self) -> Tensor:
        """How many tokens at the start of each sequence see both ways."""  # (S,)
        return self._tensor(self._prefix)

    @cached_property
    def groups(self) -> list[Group]:
        """The sequences by similar length, each group to be padded to its longest.

        A GPU takes all at once: there, starting one kernel for each group would cost more.
        """
        if len(self) * self.longest <= LONGER * self.tokens or self.device.type == "cuda":
            return [self.rows]
        order = np.argsort(-self.lengths, kind="stable")
        sizes, groups, begin = self.lengths[order], [], 0
        for end in range(1, len(order) + 1):
            if end == len(order) or sizes[end] < CLOSE * sizes[begin]:
                groups.append(Group(self, np.sort(order[begin:end])))
                begin = end
        return groups or [self.rows]  # an empty stream is one empty group

    @cached_property
    def ungrouped(self) -> Tensor:
        """Where each token of the stream stands when the groups are put end to end."""  # (N,)
        return torch.cat([group.places for group in self.groups]).argsort()

    @cached_property
    def rows(self) -> Group:
        """All sequences as rows of one group, in their order."""
        return Group(self, np.arange(len(self)))

    def behind(self, count: int) -> tuple[Mask, Tensor]:
        """The same sequences, each behind `count` more tokens; and an order that puts them there.

        >>> longer, order = Mask([2, 1], prefix=[0, 0]).behind(1)
        >>> longer.pattern, ["a", "b", "c", "<", "<"][int(order[0])]
        ('causal', '<')
        >>> order.tolist()  # of the stream's tokens and, behind all of them, those that are put in
        [3, 0, 1, 4, 2]
        """
        if count in self._behind:
            return self._behind[count]
        prefix = np.where(self._prefix > 0, self._prefix + count, 0)
        longer = Mask(self.lengths + count, prefix=prefix, device=self.device)
        owners, offsets = longer.owners, longer.offsets - count
        new = self.tokens + count * owners + offsets + count
        order = torch.where(offsets < 0, new, self.starts[owners] + offsets)
        self._behind[count] = longer, order
        return longer, order

    def visible(self, window: int = 0) -> Tensor:
        """Who may see whom in the whole stream: row i is what token i may attend to."""  # (N, N)
        same = self.owners[:, None] == self.owners
        return same & seen(
            self.offsets[:, None], self.offsets, self.prefix[self.owners][:, None], window
        )


def seen(queries: Tensor, keys: Tensor, prefix: Tensor | None, window: int) -> Tensor:
    """Whether a query's place may attend to a key's place; the arguments broadcast."""
    allowed = keys <= queries
    if prefix is not None:
        allowed = allowed | ((keys < prefix) & (queries < prefix))
    return allowed & ((queries - keys).abs() <= window) if window else allowed


class Group:
    """Some sequences of a mask, as rows padded on the right.

    G  rows     L  places in a row     n  tokens in them
    """

    def __init__(self, mask: Mask, sequences: NDArray[np.int64]) -> None:
        self.mask, self.sequences = mask, sequences
        lengths = mask.lengths[sequences]
        self.count, self.length = len(sequences), int(lengths.max(initial=0))
        self.even = bool((lengths == self.length).all())
        self.whole = len(sequences) == len(mask)

    @cached_property
    def places(self) -> Tensor:
        """Where the tokens of these rows stand in the stream."""  # (n,)
        begins = (np.cumsum(self.mask.lengths) - self.mask.lengths)[self.sequences]
        lengths = self.mask.lengths[self.sequences]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self.mask._tensor(np.repeat(begins, lengths) + within)

    @cached_property
    def slots(self) -> Tensor:
        """Where the same tokens stand in the flattened rows."""  # (n,)
        real = np.arange(self.length) < self.mask.lengths[self.sequences][:, None]
        return self.mask._tensor(np.flatnonzero(real))

    @cached_property
    def real(self) -> Tensor:
        """Which places of the rows hold a token."""  # (G, L)
        real = np.arange(self.length) < self.mask.lengths[self.sequences][:, None]
        return self.mask._tensor(real, torch.bool)

    def pad(self, x: Tensor) -> Tensor:
        """Take these rows out of a stream."""  # (N, ...) -> (G, L, ...)
        if not self.whole:
            x = take(x, self.places)
        if not self.even:
            x = x.new_zeros(self.count * self.length, *x.shape[1:]).index_copy(0, self.slots, x)
        return x.unflatten(0, (self.count, self.length))

    def flat(self, x: Tensor) -> Tensor:
        """The tokens of these rows, end to end."""  # (G, L, ...) -> (n, ...)
        x = x.flatten(0, 1)
        return x if self.even else take(x, self.slots)

    def allowed(self, window: int = 0, past: int = 0) -> Tensor | None:
        """Who may see whom in each row; None when everyone sees everyone.

        Before the first place there are `past` more that can be seen.
        """  # (G or 1, L or 1, past + L)
        mask, keys = self.mask, torch.arange(-past, self.length, device=self.mask.device)
        if mask.pattern == "full" and not window:
            return None if self.even else self.seen_by_all(past)[:, None]
        queries = keys[past:, None]
        if mask.pattern == "causal":
            return seen(queries, keys, None, window)[None]
        prefix = mask.prefix if self.whole else mask.prefix[mask._tensor(self.sequences)]
        prefix = prefix[:, None, None]
        return seen(queries, keys, prefix, window)  # padding sees at least itself

    def seen_by_all(self, past: int) -> Tensor:
        """Which places hold a token; those before the first all do."""  # (G, past + L)
        return torch.cat([self.real.new_ones(self.count, past), self.real], dim=1)
