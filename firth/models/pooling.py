"""Pooling: one vector per sequence from the hidden states of its tokens.

S  sequences     L  tokens of the longest     N  tokens of the batch     W  hidden size
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from firth.models.masks import Mask
from firth.utils.errors import UsageError

# Padded rows (S, L, W) and a mask of the tokens to pool (S, L) -> (S, W).
Pool = Callable[[Tensor, Tensor], Tensor]


def _total(rows: Tensor, weights: Tensor) -> Tensor:
    return (rows * weights[..., None]).sum(1)


def _mean(rows: Tensor, mask: Tensor) -> Tensor:
    return _total(rows, mask) / mask.sum(1, keepdim=True).clamp(min=1)


def _mean_sqrt_len(rows: Tensor, mask: Tensor) -> Tensor:
    return _total(rows, mask) / mask.sum(1, keepdim=True).clamp(min=1).sqrt()


def _weighted_mean(rows: Tensor, mask: Tensor) -> Tensor:
    """Weight tokens by position: later tokens of a decoder have more context (Muennighoff 2022)."""
    weights = torch.arange(1, rows.shape[1] + 1, device=rows.device) * mask
    return _total(rows, weights) / weights.sum(1, keepdim=True).clamp(min=1)


def _max(rows: Tensor, mask: Tensor) -> Tensor:
    return rows.masked_fill(~mask[..., None], float("-inf")).amax(1)


def _first(rows: Tensor, mask: Tensor) -> Tensor:
    return rows[torch.arange(len(rows), device=rows.device), mask.int().argmax(1)]


def _last(rows: Tensor, mask: Tensor) -> Tensor:
    from_end = mask.flip(1).int().argmax(1)
    return rows[torch.arange(len(rows), device=rows.device), rows.shape[1] - 1 - from_end]


CONCAT = ("last", "max", "mean")  # parts of the pooling `concat` of a label head

# In the order in which sentence-transformers concatenates several of them.
POOLINGS: dict[str, Pool] = {
    "cls": _first,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "last": _last,
}


def read_pooling(text: str) -> tuple[str, ...]:
    """Parse the names of one or several poolings, joined by `+`.

    >>> read_pooling("cls+mean")
    ('cls', 'mean')
    """
    kinds = tuple(text.split("+"))
    for kind in kinds:
        if kind not in POOLINGS:
            raise UsageError(
                f"There is no pooling {kind!r}; choose one of {', '.join(POOLINGS)}, "
                "or several, such as cls+mean."
            )
    return kinds


def pool_packed(hidden: Tensor, mask: Mask, kinds: Sequence[str], skip: int = 0) -> Tensor:
    """Pool each sequence of a packed batch, without its first `skip` tokens.

    The results of several poolings are concatenated. No sequence may be empty.

    >>> hidden = torch.tensor([[1.0], [3.0], [5.0]])
    >>> pool_packed(hidden, Mask([2, 1]), ["mean", "last"]).tolist()
    [[2.0, 3.0], [5.0, 5.0]]
    """  # (N, W) -> (S, W * kinds)
    group = mask.rows
    rows, pooled = group.pad(hidden.float()), group.padding_mask  # (S, L, W), (S, L)
    if skip:  # unless nothing would be left
        later = pooled & (torch.arange(group.length, device=pooled.device) >= skip)
        pooled = torch.where(later.any(1, keepdim=True), later, pooled)
    return torch.cat([POOLINGS[kind](rows, pooled) for kind in kinds], dim=-1)


def sequence_ids_of(starts: Tensor) -> Tensor:
    """Return the index of the sequence of each token.

    >>> sequence_ids_of(torch.tensor([0, 2, 3])).tolist()
    [0, 0, 1]
    """  # (S + 1,) -> (N,)
    lengths = starts[1:] - starts[:-1]
    return torch.repeat_interleave(torch.arange(len(lengths), device=starts.device), lengths)


def pool(hidden: Tensor, starts: Tensor, kind: str) -> Tensor:
    """Pool each sequence for a label head: `kind` is first, last, mean, max or concat.

    `concat` is last, max and mean side by side (Howard and Ruder 2018, section 3.3).

    >>> hidden = torch.tensor([[1.0], [3.0], [5.0]])
    >>> [pool(hidden, torch.tensor([0, 2, 3]), kind).T.tolist() for kind in ("first", "mean")]
    [[[1.0, 5.0]], [[2.0, 5.0]]]
    """  # (N, W), (S + 1,) -> (S, W), or (S, 3 W)
    if kind == "concat":
        return torch.cat([pool(hidden, starts, part) for part in CONCAT], dim=-1)
    first, after = starts[:-1], starts[1:]
    if kind in ("first", "last"):
        return hidden[first if kind == "first" else after - 1]
    lengths, sequence_ids = after - first, sequence_ids_of(starts)
    values, shape = hidden.float(), (len(lengths), hidden.shape[1])
    if kind == "max":
        lowest = torch.full(shape, -torch.inf, device=hidden.device)
        places = sequence_ids[:, None].expand_as(values)
        return lowest.scatter_reduce(0, places, values, "amax").to(hidden.dtype)
    sums = torch.zeros(shape, device=hidden.device).index_add(0, sequence_ids, values)
    return (sums / lengths[:, None]).to(hidden.dtype)
