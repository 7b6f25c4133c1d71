"""One vector for a sequence, out of the vectors of its tokens.

S  sequences     L  tokens of the longest     N  tokens of the stream     W  width
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from firth.errors import Misuse
from firth.models.masks import Mask

# Rows (S, L, W) and which of their places count (S, L) -> (S, W).
Pool = Callable[[Tensor, Tensor], Tensor]


def _total(rows: Tensor, weights: Tensor) -> Tensor:
    return (rows * weights[..., None]).sum(1)


def _mean(rows: Tensor, counts: Tensor) -> Tensor:
    return _total(rows, counts) / counts.sum(1, keepdim=True).clamp(min=1)


def _mean_sqrt_len(rows: Tensor, counts: Tensor) -> Tensor:
    return _total(rows, counts) / counts.sum(1, keepdim=True).clamp(min=1).sqrt()


def _weighted_mean(rows: Tensor, counts: Tensor) -> Tensor:
    """Later tokens of a decoder have seen more, and count for more (Muennighoff 2022)."""
    places = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    weights = places * counts
    return _total(rows, weights) / weights.sum(1, keepdim=True).clamp(min=1)


def _max(rows: Tensor, counts: Tensor) -> Tensor:
    return rows.masked_fill(~counts[..., None], float("-inf")).amax(1)


def _first(rows: Tensor, counts: Tensor) -> Tensor:
    return rows[torch.arange(len(rows), device=rows.device), counts.int().argmax(1)]


def _last(rows: Tensor, counts: Tensor) -> Tensor:
    behind = counts.flip(1).int().argmax(1)
    return rows[torch.arange(len(rows), device=rows.device), rows.shape[1] - 1 - behind]


# In the order in which sentence-transformers puts several of them side by side.
POOLINGS: dict[str, Pool] = {
    "cls": _first,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "last": _last,
}


def read_pooling(text: str) -> tuple[str, ...]:
    """The kinds of pooling that a text names, several joined by `+`.

    >>> read_pooling("cls+mean")
    ('cls', 'mean')
    """
    kinds = tuple(text.split("+"))
    for kind in kinds:
        if kind not in POOLINGS:
            raise Misuse(
                f"There is no pooling {kind!r}; known are {', '.join(POOLINGS)}, "
                "and several side by side, such as cls+mean."
            )
    return kinds


def pool_stream(stream: Tensor, mask: Mask, kinds: Sequence[str], skip: int = 0) -> Tensor:
    """One vector for each sequence of a stream; `skip` tokens at its start do not count.

    Several kinds of pooling are put side by side. No sequence may be empty.

    >>> stream = torch.tensor([[1.0], [3.0], [5.0]])
    >>> pool_stream(stream, Mask([2, 1]), ["mean", "last"]).tolist()
    [[2.0, 3.0], [5.0, 5.0]]
    """  # (N, W) -> (S, W * kinds)
    group = mask.rows
    rows, counts = group.pad(stream.float()), group.real  # (S, L, W), (S, L)
    if skip:
        later = counts & (torch.arange(group.length, device=counts.device) >= skip)
        counts = torch.where(later.any(1, keepdim=True), later, counts)
    return torch.cat([POOLINGS[kind](rows, counts) for kind in kinds], dim=-1)


def pool(hidden: Tensor, starts: Tensor, how: str) -> Tensor:
    """What a head for labels sees of each sequence, as `config.pooling` names it.

    >>> stream = torch.tensor([[1.0], [3.0], [5.0]])
    >>> [pool(stream, torch.tensor([0, 2, 3]), how).T.tolist() for how in ("first", "last", "mean")]
    [[[1.0, 5.0]], [[3.0, 5.0]], [[2.0, 5.0]]]
    """  # (N, W), (S + 1,) -> (S, W)
    begins, ends = starts[:-1], starts[1:]
    if how != "mean":
        return hidden[begins if how == "first" else ends - 1]
    lengths = ends - begins
    owners = torch.repeat_interleave(torch.arange(len(lengths), device=hidden.device), lengths)
    sums = torch.zeros(len(lengths), hidden.shape[1], dtype=torch.float32, device=hidden.device)
    sums = sums.index_add(0, owners, hidden.float())
    return (sums / lengths[:, None]).to(hidden.dtype)
