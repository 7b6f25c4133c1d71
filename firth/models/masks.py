"""Attention masks for packed batches: which tokens may attend to which.

    S  sequences     N  tokens of all sequences     L  tokens of the longest sequence

All models here take a packed batch: the tokens of all sequences one after another, without padding.
A mask stores the length of each sequence and how many of its first tokens attend in both
directions. That is the whole difference between an encoder, a decoder and a prefix language model.
In boolean tensors, True = may attend.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firth.utils.device_transfer import to_device

Lengths = Sequence[int] | NDArray[np.int64]

# A group holds sequences of at least this fraction of its longest one;
MIN_LENGTH_RATIO = 0.5
# there is one group only if padding makes the batch at most this many times larger.
MAX_PADDING_RATIO = 1.5


class _SelectRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows = len(x)
        return x.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (indices,), gradient = ctx.saved_tensors, gradients[0]
        full = gradient.new_zeros(ctx.rows, *gradient.shape[1:])
        return full.index_copy_(0, indices, gradient), None


def select_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Select rows, each at most once: then the gradient is a copy, where torch would add."""
    return _SelectRows.apply(x, indices)  # type: ignore[no-untyped-call]


class Mask:
    """The sequence lengths of a packed batch, and the length of each bidirectional prefix.

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
        """`prefix`: (S,) tokens that attend in both directions; None: all; zeros: causal."""
        self.lengths: NDArray[np.int64] = np.asarray(lengths, dtype=np.int64)  # (S,)
        self.device = torch.device(device)
        wanted = self.lengths if prefix is None else np.asarray(prefix, dtype=np.int64)
        self.prefix_lengths: NDArray[np.int64] = np.minimum(wanted, self.lengths)  # (S,)
        self._prepended: dict[int, tuple[Mask, Tensor]] = {}  # results of `prepend`
        if (self.prefix_lengths >= self.lengths).all():
            self.pattern = "full"
        else:  # a prefix of one token is the same as none
            self.pattern = "prefix" if (self.prefix_lengths > 1).any() else "causal"

    @classmethod
    def causal(cls, lengths: Lengths, device: torch.device | str = "cpu") -> Mask:
        """Make a mask in which every token attends to itself and earlier tokens."""
        return cls(lengths, prefix=np.zeros(len(lengths), np.int64), device=device)

    def __len__(self) -> int:
        return len(self.lengths)

    def copy(self) -> Mask:
        """Return a mask with tensors of its own."""
        return Mask(self.lengths, prefix=self.prefix_lengths, device=self.device)

    @cached_property
    def num_tokens(self) -> int:
        """The number of tokens of all sequences."""
        return int(self.lengths.sum())

    @cached_property
    def max_length(self) -> int:
        """The length of the longest sequence."""
        return int(self.lengths.max(initial=0))

    def _tensor(self, values: NDArray[Any], dtype: torch.dtype = torch.long) -> Tensor:
        return to_device(values, self.device, dtype)

    @cached_property
    def starts(self) -> Tensor:
        """Cumulative lengths (`cu_seqlens` of variable-length kernels)."""  # (S + 1,)
        return self._tensor(np.concatenate([[0], np.cumsum(self.lengths)]), torch.int32)

    @cached_property
    def lengths_tensor(self) -> Tensor:
        """The length of each sequence, on the device."""  # (S,)
        return self._tensor(self.lengths)

    @cached_property
    def sequence_ids(self) -> Tensor:
        """The index of the sequence of each token."""  # (N,)
        return self._tensor(np.repeat(np.arange(len(self)), self.lengths))

    @cached_property
    def positions(self) -> Tensor:
        """The position of each token in its sequence."""  # (N,)
        starts = np.cumsum(self.lengths) - self.lengths
        return self._tensor(np.arange(self.num_tokens) - np.repeat(starts, self.lengths))

    @cached_property
    def prefix(self) -> Tensor:
        """The length of each bidirectional prefix."""  # (S,)
        return self._tensor(self.prefix_lengths)

    @cached_property
    def groups(self) -> list[PaddedGroup]:
        """Groups of sequences of similar length, each to be padded to its longest.

        On a GPU there is one group: launching a kernel for each would cost more than padding.
        """
        padded = len(self) * self.max_length
        if padded <= MAX_PADDING_RATIO * self.num_tokens or self.device.type == "cuda":
            return [self.rows]
        order = np.argsort(-self.lengths, kind="stable")
        lengths, groups, begin = self.lengths[order], [], 0
        for end in range(1, len(order) + 1):
            if end == len(order) or lengths[end] < MIN_LENGTH_RATIO * lengths[begin]:
                groups.append(PaddedGroup(self, np.sort(order[begin:end])))
                begin = end
        return groups or [self.rows]  # an empty batch is one empty group

    @cached_property
    def ungroup_order(self) -> Tensor:
        """The indices that restore the packed order from the concatenated groups."""  # (N,)
        return torch.cat([group.token_indices for group in self.groups]).argsort()

    @cached_property
    def rows(self) -> PaddedGroup:
        """All sequences as one padded group, in their order."""
        return PaddedGroup(self, np.arange(len(self)))

    def prepend(self, count: int) -> tuple[Mask, Tensor]:
        """Add `count` tokens before each sequence; return the mask and the new token order.

        The order indexes the N tokens followed by the new ones:

        >>> longer, order = Mask([2, 1], prefix=[0, 0]).prepend(1)
        >>> longer.pattern, order.tolist()
        ('causal', [3, 0, 1, 4, 2])
        """
        if count in self._prepended:
            return self._prepended[count]
        prefix = np.where(self.prefix_lengths > 0, self.prefix_lengths + count, 0)
        longer = Mask(self.lengths + count, prefix=prefix, device=self.device)
        sequence_ids, positions = longer.sequence_ids, longer.positions - count
        new = self.num_tokens + count * sequence_ids + positions + count
        order = torch.where(positions < 0, new, self.starts[sequence_ids] + positions)
        self._prepended[count] = longer, order
        return longer, order

    def visible(self, window: int = 0) -> Tensor:
        """Build the dense mask of the packed batch; row i: what token i attends to."""  # (N, N)
        same = self.sequence_ids[:, None] == self.sequence_ids
        prefix = self.prefix[self.sequence_ids][:, None]
        return same & is_visible(self.positions[:, None], self.positions, prefix, window)


def is_visible(queries: Tensor, keys: Tensor, prefix: Tensor | None, window: int) -> Tensor:
    """Tell whether query positions may attend to key positions; the arguments broadcast."""
    allowed = keys <= queries
    if prefix is not None:
        allowed = allowed | ((keys < prefix) & (queries < prefix))
    return allowed & ((queries - keys).abs() <= window) if window else allowed


class PaddedGroup:
    """Some sequences of a mask, as rows padded on the right.

    G  rows     L  positions in a row     n  tokens in the rows
    """

    def __init__(self, mask: Mask, sequences: NDArray[np.int64]) -> None:
        self.mask, self.sequences = mask, sequences
        lengths = mask.lengths[sequences]
        self.count, self.length = len(sequences), int(lengths.max(initial=0))
        self.equal_lengths = bool((lengths == self.length).all())
        self.is_whole_batch = len(sequences) == len(mask)

    @cached_property
    def token_indices(self) -> Tensor:
        """The indices of these tokens in the packed batch."""  # (n,)
        starts = (np.cumsum(self.mask.lengths) - self.mask.lengths)[self.sequences]
        lengths = self.mask.lengths[self.sequences]
        positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self.mask._tensor(np.repeat(starts, lengths) + positions)

    @cached_property
    def padded_indices(self) -> Tensor:
        """The indices of the same tokens in the flattened padded rows."""  # (n,)
        real = np.arange(self.length) < self.mask.lengths[self.sequences][:, None]
        return self.mask._tensor(np.flatnonzero(real))

    @cached_property
    def padding_mask(self) -> Tensor:
        """True where a row holds a token, False where it is padded."""  # (G, L)
        real = np.arange(self.length) < self.mask.lengths[self.sequences][:, None]
        return self.mask._tensor(real, torch.bool)

    def pad(self, x: Tensor) -> Tensor:
        """Copy these sequences from the packed batch to padded rows."""  # (N, ...) -> (G, L, ...)
        if not self.is_whole_batch:
            x = select_rows(x, self.token_indices)
        if not self.equal_lengths:
            rows = x.new_zeros(self.count * self.length, *x.shape[1:])
            x = rows.index_copy(0, self.padded_indices, x)
        return x.unflatten(0, (self.count, self.length))

    def unpad(self, x: Tensor) -> Tensor:
        """Concatenate the tokens of padded rows."""  # (G, L, ...) -> (n, ...)
        x = x.flatten(0, 1)
        return x if self.equal_lengths else select_rows(x, self.padded_indices)

    def allowed(self, window: int = 0, prefix_length: int = 0) -> Tensor | None:
        """Build the mask of these rows; None if all positions attend to all.

        `prefix_length` key positions before the first token are visible to all (prefix tuning).
        """  # (G or 1, L or 1, prefix_length + L)
        mask = self.mask
        keys = torch.arange(-prefix_length, self.length, device=mask.device)
        if mask.pattern == "full" and not window:
            return None if self.equal_lengths else self.visible_keys(prefix_length)[:, None]
        queries = keys[prefix_length:, None]
        if mask.pattern == "causal":
            return is_visible(queries, keys, None, window)[None]
        prefix = mask.prefix if self.is_whole_batch else mask.prefix[mask._tensor(self.sequences)]
        # padding attends at least to itself, so no row of the softmax is empty
        return is_visible(queries, keys, prefix[:, None, None], window)

    def visible_keys(self, prefix_length: int) -> Tensor:
        """True for tokens and for the positions before the first."""  # (G, prefix_length + L)
        ones = self.padding_mask.new_ones(self.count, prefix_length)
        return torch.cat([ones, self.padding_mask], dim=1)
