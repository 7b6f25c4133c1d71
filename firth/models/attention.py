"""Attention over a flat stream: what a mask becomes on the machine at hand.

    N  tokens of the stream     H  heads     K  key-value heads     D  width of a head
    G  rows     L  places in a row     T  places in the cache

A mask is lowered once for each forward pass to a view, whose `attend` all layers use:

    Even     sequences of one length on a GPU: its fastest kernels
    Packed   variable-length kernels on a GPU, in half precision
    Rows     sequences of similar length as rows: the fast kernels where nothing but causality
             restricts, an explicit mask where padding, a window, a prefix or a bias does
    Across   the same, from the rows of a decoder to those of its encoder
    Cached   new tokens against the keys and values kept of earlier ones

A compiler sees into the first two (`hide_from_compiler`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from firth.models.cache import Cache, Past
from firth.models.masks import Group, Mask, seen, take

STEP = 2  # lengths that fast kernels for rows are used for are multiples of this

# (…, Q) and (…, L) places -> (…, H, Q, L), added to the scores: T5's bias.
Bias = Callable[[Tensor, Tensor], Tensor]
# (G, H, L, D) queries and (G, K, L, D) keys -> (G, H, L, L), added to them: DeBERTa's terms.
Terms = Callable[[Tensor, Tensor], Tensor]


class How(NamedTuple):
    """How a layer looks, whatever it looks at."""

    scale: float  # of its scores
    dropout: float = 0.0
    terms: Terms | None = None  # that are added to them
    past: Past | None = None  # learned keys and values before every sequence


class View(Protocol):
    """A lowered mask."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        """Queries (N, H, D) look at keys and values (…, K, D); gives (N, H, D)."""


def lower(
    mask: Mask,
    *,
    window: int,
    bias: Bias | None,
    packed: bool,
    terms: bool = False,
    dense: bool = False,
    past: int = 0,
) -> View:
    """How a stream attends to itself, and to `past` learned places before each sequence.

    `packed`: by variable-length kernels, where they can do it; `dense`: by explicit masks; `terms`
    will be added to scores.
    """
    plain = not terms and not dense and not past and mask.pattern != "prefix"
    if plain and not window and evenly(mask):
        return Even(mask, mask, bias)
    if plain and packed and bias is None:
        return Packed(mask, mask, window)
    return Rows(mask, window, bias, dense, past)


def lower_cross(queries: Mask, memory: Mask, *, packed: bool, past: int = 0) -> View:
    """How the stream of a decoder attends to that of its encoder, sequence by sequence."""
    if not past and evenly(queries) and evenly(memory):
        return Even(queries, memory)
    if not past and packed:
        return Packed(queries, memory, 0)
    return Across(queries, memory, past)


def evenly(mask: Mask) -> bool:
    """Whether a GPU finds sequences of one length, and one of few."""
    return mask.device.type == "cuda" and mask.rows.even and mask.longest % STEP == 0


@cache
def packs(device: torch.device, width: int) -> bool:
    """Whether a device has variable-length kernels for heads so wide: since NVIDIA's Ampere."""
    fits = width % 8 == 0 and width <= 256
    return fits and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


class Even:
    """Sequences of one length, as the rows that they already are."""

    def __init__(self, queries: Mask, keys: Mask, bias: Bias | None = None) -> None:
        # As text: then a compiler takes them for constants, and shapes stay simple.
        self.lengths = str(queries.longest), str(keys.longest)
        self.causal = queries is keys and queries.pattern == "causal"
        self.scores: Tensor | None = None
        if bias is not None:
            place = torch.arange(keys.longest, device=keys.device)
            allowed = place[:, None] >= place if self.causal else None
            self.scores, self.causal = _hide(bias(place, place), allowed)[None], False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        queries, keys = (int(length) for length in self.lengths)
        q, k = q.to(v.dtype), k.to(v.dtype)  # a norm of queries and keys gives single precision
        q = q.unflatten(0, (-1, queries))  # (G, L, H, D)
        k, v = k.unflatten(0, (-1, keys)), v.unflatten(0, (-1, keys))
        return _softmax(q, k, v, self.scores, how, self.causal).flatten(0, 1)


class Packed:
    """Sequences end to end, as the variable-length kernels of a GPU take them."""

    def __init__(self, queries: Mask, keys: Mask, window: int) -> None:
        self.starts = queries.starts, keys.starts
        # No sequence is longer; of few different bounds, one compiled block serves many batches.
        self.longest = power_of_two(queries.longest), power_of_two(keys.longest)
        self.causal = queries is keys and queries.pattern == "causal"
        self.window = (window, 0 if self.causal else window) if window else (None, None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        q, k = q.to(v.dtype), k.to(v.dtype)  # a norm of queries and keys gives single precision
        # torch.nn.attention.varlen calls the same kernel, by a way that takes longer than it.
        out: Tensor = torch.ops.aten._flash_attention_forward(
            q,
            k,
            v,
            *self.starts,
            *self.longest,
            how.dropout,
            self.causal and not self.window[0],
            False,
            scale=how.scale,
            window_size_left=self.window[0],
            window_size_right=self.window[1],
        )[0]
        return out


def power_of_two(number: int) -> int:
    """The next one up.

    >>> power_of_two(100), power_of_two(128)
    (128, 128)
    """
    return 1 << max(0, number - 1).bit_length()


class Rows:
    """Each group of similar sequences as rows of equal length."""

    def __init__(
        self, mask: Mask, window: int, bias: Bias | None, dense: bool, past: int = 0
    ) -> None:
        self.mask, self.window, self.dense, self.past = mask, window, dense, past
        self.scores = [self._scores(group, bias) for group in mask.groups]

    def _scores(self, group: Group, bias: Bias | None) -> Tensor | None:
        """What the kernel is given beside queries and keys; None: nothing, or only `causal`."""
        if bias is None and not self.dense and self._causal():
            return None
        allowed = group.allowed(self.window, self.past)
        keys = torch.arange(-self.past, group.length, device=self.mask.device)
        if allowed is None and self.dense:
            allowed = torch.ones_like(keys, dtype=torch.bool)[None, None]
        if bias is None:
            return None if allowed is None else allowed[:, None]
        return _hide(bias(keys[self.past :], keys)[None], allowed)

    def _causal(self) -> bool:
        return self.mask.pattern == "causal" and not self.window and not self.past

    def attend(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        parts = []
        for group, scores in zip(self.mask.groups, self.scores, strict=True):
            rows = group.pad(q), group.pad(k), group.pad(v)  # (G, L, ., D)
            if how.terms is not None:  # learned places have none
                added = how.terms(rows[0].transpose(1, 2), rows[1].transpose(1, 2))
                added = pad(added, (self.past, 0))
                scores = _hide(added, group.allowed(self.window, self.past))
            rows = rows[0], *_behind(how.past, rows[1], rows[2])
            causal = scores is None and self._causal()
            parts.append(group.flat(_softmax(*rows, scores, how, causal)))  # (n, H, D)
        if len(parts) == 1:
            return parts[0]
        return take(torch.cat(parts), self.mask.ungrouped)


class Across:
    """Rows of a decoder against the rows of its encoder."""

    def __init__(self, queries: Mask, memory: Mask, past: int = 0) -> None:
        self.queries, self.memory = queries.rows, memory.rows
        even = self.memory.even
        self.scores = None if even else self.memory.seen_by_all(past)[:, None, None]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        rows = self.queries.pad(q), *_behind(how.past, self.memory.pad(k), self.memory.pad(v))
        return self.queries.flat(_softmax(*rows, self.scores, how))


class Cached:
    """New tokens against a cache that holds them and all earlier ones."""

    def __init__(self, mask: Mask, cache: Cache, window: int, bias: Bias | None) -> None:
        self.rows, self.length = mask.rows, cache.looked_at(mask.longest)
        step = torch.arange(mask.longest, device=mask.device)
        queries = cache.lengths[:, None] + step  # (B, Q) their places
        keys = torch.arange(self.length, device=mask.device)
        prefix = None  # nothing new sees what comes behind it
        if mask.pattern != "causal":
            prefix = (cache.lengths + mask.prefix)[:, None, None]
        allowed = seen(queries[..., None], keys, prefix, window)  # (B, Q, T)
        # As numbers: else every layer would make them of the truths.
        added = cache.kept.new_zeros(1) if bias is None else bias(queries, keys)
        self.scores = _hide(added, allowed)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        rows = self.rows.pad(q), k[:, : self.length], v[:, : self.length]
        rows = rows[0], rows[1].to(q.dtype), rows[2].to(q.dtype)
        return self.rows.flat(_softmax(*rows, self.scores, how))


def _behind(past: Past | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of keys and values behind the learned ones."""  # (G, L, K, D) -> (G, P + L, K, D)
    if past is None:
        return k, v
    learned = [part.to(k.dtype).expand(len(k), *part.shape) for part in past]
    return torch.cat([learned[0], k], dim=1), torch.cat([learned[1], v], dim=1)


def _hide(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Scores, minus infinity where a place may not be seen."""  # (…, H, Q, L)
    return scores if allowed is None else scores.masked_fill(~allowed.unsqueeze(-3), float("-inf"))


def _softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scores: Tensor | None,
    how: How,
    causal: bool = False,
) -> Tensor:
    """Scaled dot-product attention over rows."""  # (G, L, H, D) -> (G, L, H, D)
    given = q.dtype
    # The CPU's backward kernel is several times faster in full precision.
    full = q.requires_grad and q.device.type == "cpu" and given == torch.bfloat16
    if full:
        q, k, v = q.float(), k.float(), v.float()
    if scores is not None and scores.dtype != torch.bool:
        scores = scores.to(q.dtype)
    with torch.autocast("cpu", enabled=False) if full else nullcontext():
        out = scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=scores,
            dropout_p=how.dropout,
            is_causal=causal,
            scale=how.scale,
            enable_gqa=q.shape[2] != k.shape[2],
        )
    return out.transpose(1, 2).to(given)


def hide_from_compiler() -> None:
    """Let torch.compile pass over what has other shapes with every batch."""
    for view in (Rows, Across, Cached):
        if not hasattr(view.attend, "_torchdynamo_disable"):
            view.attend = torch.compiler.disable(view.attend)  # type: ignore[method-assign]
