"""One block, stacked, under the mask that makes it an encoder, a decoder or both.

N  tokens of the stream     E  width of their vectors     W  width
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from firth.errors import MismatchError
from firth.models.attention import Cached, View, evenly, lower, lower_cross, packs
from firth.models.cache import Cache, Prefix
from firth.models.config import ModelConfig
from firth.models.layers import Attention, CrossAttention, FeedForward, Look, Residual, make_norm
from firth.models.masks import Mask
from firth.models.positions import Disentangled, RelativeBias, rotary_angles, sinusoids
from firth.models.recording import Recorder

HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Around:
    """What a stream may look at beside itself."""

    memory: Tensor | None = None  # the encoder's output
    memory_mask: Mask | None = None
    cache: Cache | None = None  # keys and values of earlier tokens
    prefix: Prefix = field(default_factory=Prefix)  # and learned ones

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing but the stream."""
        return self.memory_mask is None and self.cache is None and not self.prefix.own


class Block(nn.Module):
    """Look around, then think: two residual lines (three behind an encoder)."""

    def __init__(self, config: ModelConfig, *, cross: int, first: bool) -> None:
        """`cross`: the width of an encoder's output to look at; 0: there is none."""
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = Residual(config, config.width, first=first)
        self.cross = CrossAttention(config, cross) if cross else None
        self.cross_norm = Residual(config, config.width) if cross else None
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = Residual(config, config.width)

    def forward(self, x: Tensor, look: Look) -> Tensor:
        x = self.attention_norm(x, lambda y: self.attention(y, look))
        if self.cross is not None and self.cross_norm is not None:
            x = self.cross_norm(x, partial(self.cross, look=look))
        return self.feed_forward_norm(x, self.feed_forward)


class BottleneckBlock(nn.Module):
    """MobileBERT's: narrower inside, with several feed-forward layers (Sun et al. 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        wide, narrow = config.width, config.bottleneck
        self.down = nn.Linear(wide, narrow)
        self.down_norm = make_norm(config, narrow)
        self.look = nn.Linear(wide, narrow)  # what queries and keys are made of
        self.look_norm = make_norm(config, narrow)
        self.attention = Attention(config, values_from=wide)
        self.attention_norm = Residual(config, narrow)
        more = range(config.feed_forwards - 1)
        self.feed_forwards = nn.ModuleList(FeedForward(config) for _ in more)
        self.feed_forward_norms = nn.ModuleList(Residual(config, narrow) for _ in more)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = Residual(config, narrow)
        self.up = nn.Linear(narrow, wide)
        self.up_norm = Residual(config, wide)

    def forward(self, x: Tensor, look: Look) -> Tensor:
        around = self.look_norm(self.look(x))
        y = self.down_norm(self.down(x))
        y = self.attention_norm(y, lambda _: self.attention(around, look, full=x))
        for norm, feed_forward in zip(self.feed_forward_norms, self.feed_forwards, strict=True):
            y = norm(y, feed_forward)
        y = self.feed_forward_norm(y, self.feed_forward)
        return self.up_norm(x, lambda _: self.up(y))


class Embedding(nn.Module):
    """From the vectors of tokens to the first layer: places, segments, norm, projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # MobileBERT projects before it adds places and segments, ALBERT after.
        width = config.width if config.trigrams else config.table_width
        rows = config.context + config.position_offset
        learned = config.positions == "learned"
        self.positions = nn.Embedding(rows, width) if learned else None
        self.segments = nn.Embedding(config.segments, width) if config.segments else None
        self.norm = make_norm(config, width) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        inputs = config.table_width * (3 if config.trigrams else 1)
        narrow = config.embedding_width or config.trigrams
        self.project = nn.Linear(inputs, config.width) if narrow else None

    def forward(self, x: Tensor, mask: Mask, places: Tensor, segments: Tensor | None) -> Tensor:
        config = self.config
        if config.embedding_scale:
            x = x * torch.tensor(config.width**0.5, dtype=x.dtype)
        if config.trigrams and self.project is not None:
            x = self.project(_with_neighbours(x, mask))
        if self.positions is not None:
            x = x + self.positions(places + config.position_offset)
        elif config.positions == "sinusoidal":
            x = x + sinusoids(places, x.shape[-1]).to(x.dtype)
        if self.segments is not None:
            kinds = torch.zeros_like(places) if segments is None else segments
            x = x + self.segments(kinds)
        x = self.dropout(self.norm(x))
        return self.project(x) if self.project is not None and not config.trigrams else x


def _with_neighbours(x: Tensor, mask: Mask) -> Tensor:
    """The next vector, this one and the one before it; zero beyond the ends."""  # (N, 3 E)
    ends = torch.cat([mask.offsets[1:] == 0, mask.offsets.new_ones(1).bool()])
    following = x.roll(-1, 0).masked_fill(ends[:, None], 0.0)
    previous = x.roll(1, 0).masked_fill((mask.offsets == 0)[:, None], 0.0)
    return torch.cat([following, x, previous], dim=-1)


class Stack(nn.Module):
    """Blocks one upon the other, with what comes before the first and after the last."""

    def __init__(self, config: ModelConfig, layers: int, *, decoder: bool, cross: int = 0) -> None:
        super().__init__()
        self.config, self.layers = config, layers
        self.prompt: nn.Module | None = None  # learned vectors before every sequence, and
        self.prefix: nn.Module | None = None  # learned keys and values: `firth.adapt.prompts`
        self.checkpointing = False  # recompute activations in the backward pass
        self.dense = False  # explicit masks instead of fast kernels (for tests)
        self.wide = False  # a stream in single precision, also where autocast is on
        self.recorder: Recorder | None = None  # a GPU is told only once what blocks compute
        self.embedding = Embedding(config)
        self.relative: RelativeBias | Disentangled | None = None
        if config.relative == "bias":
            shape = config.buckets, config.distance, config.heads
            self.relative = RelativeBias(*shape, both_ways=not decoder)
        elif config.relative == "disentangled":
            shape = config.width, config.buckets, config.distance
            self.relative = Disentangled(*shape, config.norm_eps)
        self.blocks = nn.ModuleList(
            BottleneckBlock(config)
            if config.bottleneck
            else Block(config, cross=cross, first=not config.first_norm and i == 0)
            for i in range(1 if config.shared else layers)
        )
        last = config.norm_place != "post"
        self.final_norm = make_norm(config, config.width) if last else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        *,
        segments: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: Cache | None = None,
        layers: list[Tensor] | None = None,
    ) -> Tensor:
        """Vectors of tokens (N, E) -> (N, W); `layers` collects what enters and leaves each."""
        prefix = self.prefix() if self.prefix is not None else Prefix()
        if cache is None or not cache.used:
            self._check_room(mask.longest + prefix.length)
        if cache is not None and not cache.used and prefix.own:
            cache.begin(prefix)  # from now on they are like tokens that were kept
        places = mask.offsets + (prefix.length if cache is None else cache.lengths[mask.owners])
        x = self.embedding(x, mask, places, segments)
        if x.is_cuda and torch.is_autocast_enabled("cuda") and not self.wide:
            # half of what blocks read and write
            x = x.to(torch.get_autocast_dtype("cuda"))
        around = Around(memory, memory_mask, cache, prefix)
        alone = layers is None and around.is_nothing
        if self.recorder is not None and alone and self._is_recordable(x, mask):
            x = self.recorder(self._through, x, mask, places, self._weights())
        else:
            x = self._through(x, mask, places, around, layers)
        if cache is not None:
            cache.advance(mask)
        return x

    def _through(
        self,
        x: Tensor,
        mask: Mask,
        places: Tensor,
        around: Around | None = None,
        layers: list[Tensor] | None = None,
    ) -> Tensor:
        """From the embedding to what the heads see."""  # (N, W) -> (N, W)
        looks = self._looks(x, mask, places, around or Around())
        for i in range(self.layers):
            if layers is not None:
                layers.append(x)
            block = self.blocks[0 if self.config.shared else i]
            if not self.training:  # what is compiled is so for the shapes of learning alone
                x = block._call_impl(x, looks[i])
            elif self.checkpointing:
                x = checkpoint(block, x, looks[i], use_reentrant=False)
            else:
                x = block(x, looks[i])
        x = self.final_norm(x)
        if layers is not None:
            layers.append(x)
        return x

    def _is_recordable(self, x: Tensor, mask: Mask) -> bool:
        """Whether it learns, and streams of one shape are computed by the same kernels."""
        if not self.training or self.checkpointing or not torch.is_grad_enabled():
            return False
        if mask.pattern == "prefix":
            return False
        return evenly(mask) or (self.relative is None and not self.dense and self._packs(x))

    def _weights(self) -> list[nn.Parameter]:
        """All weights between the embedding and the heads."""
        modules = (self.relative, self.blocks, self.final_norm)
        return [
            weight for module in modules if module is not None for weight in module.parameters()
        ]

    def _check_room(self, length: int) -> None:
        """Learned places are few, and what is learned to stand before a text takes some."""
        if self.config.positions == "learned" and length > self.config.context:
            raise MismatchError(
                f"A sequence and what is learned to stand before it take {length} places, but the "
                f"network has {self.config.context}; cut the sequence."
            )

    def _looks(self, x: Tensor, mask: Mask, places: Tensor, around: Around) -> list[Look]:
        """What each layer sees; layers of one kind share one lowered mask."""
        config, packed = self.config, self._packs(x)
        cache, prefix, across = around.cache, around.prefix, None
        if around.memory_mask is not None:
            past = len(prefix.cross[0][0]) if prefix.cross else 0
            asking = mask if cache is None else cache.by_source(mask)
            across = lower_cross(asking, around.memory_mask, packed=packed, past=past)
        past = prefix.length if cache is None else 0
        kinds = {
            local: Look(
                view=self._view(mask, config.window if local else 0, cache, packed, past),
                angles=rotary_angles(
                    places, config.head_width, config.local_theta if local else config.theta
                )
                if config.positions == "rotary"
                else None,
                distances=self.relative if isinstance(self.relative, Disentangled) else None,
                memory=around.memory,
                across=across,
            )
            for local in {i in config.windowed for i in range(self.layers)}
        }
        looks = [kinds[i in config.windowed] for i in range(self.layers)]
        if prefix.cross:
            pairs = zip(looks, prefix.cross, strict=True)
            looks = [replace(look, across_past=cross) for look, cross in pairs]
        if prefix.own and cache is None:
            pairs = zip(looks, prefix.own, strict=True)
            looks = [replace(look, past=own) for look, own in pairs]
        if cache is None:
            return looks
        steps = cache.steps(mask, places)
        return [replace(look, step=step) for look, step in zip(looks, steps, strict=True)]

    def _packs(self, x: Tensor) -> bool:
        """Whether there are kernels for sequences end to end."""
        half = x.dtype in HALVES or (
            x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type)
        )
        return half and packs(x.device, self.config.head_width)

    def _view(self, mask: Mask, window: int, cache: Cache | None, packed: bool, past: int) -> View:
        bias = self.relative if isinstance(self.relative, RelativeBias) else None
        if cache is not None and cache.used:
            return Cached(mask, cache, window, bias)
        return lower(
            mask,
            window=window,
            bias=bias,
            packed=packed,
            terms=isinstance(self.relative, Disentangled),
            dense=self.dense,
            past=past,
        )
