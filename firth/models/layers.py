"""The parts of a block: norms, projections, attention, the feed-forward layer.

    N  tokens of the stream     W  width     H  heads     K  key-value heads     D  width of a head
    M  tokens of the encoder's stream        R  its width

Query, key and value are one matrix, as are a gated layer's two ways up: one product instead of
several. Such a matrix carries `splits`, the rows of each part; name tables, low-rank adapters and
Muon read the parts from there. A projection is always called as a module, so that what fine-tuning
hangs onto it (`firth.adapt`) is never passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, rms_norm, silu

from firth.models.attention import How, View
from firth.models.cache import Past, Step
from firth.models.config import ModelConfig
from firth.models.positions import Angles, Disentangled, turn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu-tanh": partial(gelu, approximate="tanh"),
    "relu": relu,
    "silu": silu,
}


class PlusOne(nn.Module):
    """Gemma's root-mean-square norm: its weight is what is added to one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return rms_norm(wide, wide.shape[-1:], 1.0 + self.weight.float(), self.eps).to(x.dtype)


class Affine(nn.Module):
    """MobileBERT's norm: a scale and a shift, no statistics (Sun et al. 2020, section 3.4)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


def make_norm(config: ModelConfig, width: int) -> nn.Module:
    """The normalisation a configuration asks for."""
    if config.norm == "layer":
        return nn.LayerNorm(width, eps=config.norm_eps, bias=config.norm_bias)
    if config.norm == "rms":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return PlusOne(width, config.norm_eps) if config.norm == "rms-plus-one" else Affine(width)


class Residual(nn.Module):
    """`x + f(x)`, with the norm before f, after the sum, or on both sides of f."""

    def __init__(self, config: ModelConfig, width: int, *, first: bool = False) -> None:
        super().__init__()

        def norm(*places: str) -> nn.Module:
            return make_norm(config, width) if config.norm_place in places else nn.Identity()

        self.before = nn.Identity() if first else norm("pre", "both")
        self.after = norm("both")
        self.outer = norm("post")
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        y = self.outer(x + self.dropout(self.after(f(self.before(x)))))
        return y.to(x.dtype)  # a norm gives single precision where autocast is on


class Fused(nn.Linear):
    """A projection made of several, one below the other."""

    def __init__(self, inputs: int, splits: tuple[int, ...], bias: bool) -> None:
        super().__init__(inputs, sum(splits), bias=bias)
        self.splits = splits

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return self(x).split(self.splits, dim=-1)


@dataclass
class Look:
    """What a layer knows of the stream around it."""

    view: View
    angles: Angles | None = None
    distances: Disentangled | None = None
    step: Step | None = None  # where keys and values are kept
    memory: Tensor | None = None  # (M, R) the encoder's output
    across: View | None = None
    past: Past | None = None  # learned keys and values before every sequence (prefix tuning)
    across_past: Past | None = None  # and before the encoder's output


class Attention(nn.Module):
    """A stream looks at itself."""

    def __init__(self, config: ModelConfig, values_from: int = 0) -> None:
        """`values_from`: values are read from an input of this width (MobileBERT)."""
        super().__init__()
        self.heads, self.kv_heads, self.width = config.heads, config.kv_heads, config.head_width
        self.scale, self.dropout = config.scale, config.attention_dropout
        queries, keys = self.heads * self.width, self.kv_heads * self.width
        bias = config.bias if config.qkv_bias is None else config.qkv_bias
        self.value = nn.Linear(values_from, keys, bias=bias) if values_from else None
        splits = (queries, keys) if values_from else (queries, keys, keys)
        self.qkv = Fused(config.block_width, splits, bias)
        self.output = nn.Linear(queries, config.block_width, bias=config.bias)
        self.query_norm = make_norm(config, self.width) if config.qk_norm else None
        self.key_norm = make_norm(config, self.width) if config.qk_norm else None

    def forward(self, x: Tensor, look: Look, full: Tensor | None = None) -> Tensor:
        q, k, *rest = self.qkv.parts(x)
        v = self.value(full) if self.value is not None else rest[0]
        q, k, v = (part.unflatten(-1, (-1, self.width)) for part in (q, k, v))  # (N, ., D)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if look.angles is not None:
            q, k = turn(torch.cat([q, k], dim=1), look.angles).split([self.heads, self.kv_heads], 1)
        if look.step is not None:
            k, v = look.step.keep(k, v)
        terms = None
        if look.distances is not None:
            terms = partial(look.distances.terms, qk=self.qkv, scale=self.scale)
        dropout = self.dropout if self.training else 0.0
        out = look.view.attend(q, k, v, How(self.scale, dropout, terms, look.past))
        return self.output(out.flatten(1))


class CrossAttention(nn.Module):
    """The stream of a decoder looks at that of its encoder."""

    def __init__(self, config: ModelConfig, memory: int) -> None:
        """`memory`: the width of the encoder's output."""
        super().__init__()
        self.width, self.scale = config.head_width, config.scale
        self.dropout = config.attention_dropout
        queries, keys = config.heads * self.width, config.kv_heads * self.width
        self.query = nn.Linear(config.width, queries, bias=config.bias)
        self.kv = Fused(memory, (keys, keys), config.bias)
        self.output = nn.Linear(queries, config.width, bias=config.bias)

    def forward(self, x: Tensor, look: Look) -> Tensor:
        assert look.across is not None
        q = self.query(x).unflatten(-1, (-1, self.width))
        k, v = self._memory(look)
        dropout = self.dropout if self.training else 0.0
        how = How(self.scale, dropout, past=look.across_past)
        out = look.across.attend(q, k, v, how)
        return self.output(out.flatten(1))

    def _memory(self, look: Look) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's output, computed once for a whole generation."""
        slot = look.step.slot if look.step is not None else None
        if slot is not None and slot.memory is not None:
            return slot.memory
        assert look.memory is not None
        k, v = (part.unflatten(-1, (-1, self.width)) for part in self.kv.parts(look.memory))
        if slot is not None:
            slot.memory = k, v
        return k, v


class FeedForward(nn.Module):
    """Up, through the activation, and down again."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        splits = (config.inner, config.inner) if config.gated else (config.inner,)
        self.up = Fused(config.block_width, splits, config.bias)
        self.down = nn.Linear(config.inner, config.block_width, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        first, *gate = self.up.parts(x)
        first = self.activation(first)
        return self.down(first * gate[0] if gate else first)
