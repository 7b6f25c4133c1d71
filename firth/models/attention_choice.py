"""The choice of attention backends in a forward pass of a stack: the fastest for its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from firth.models.attention import (
    AttentionBackend,
    CachedAttention,
    PackedAttention,
    attention_backend,
    cross_attention_backend,
    has_varlen_kernels,
)
from firth.models.attention_recording import AttentionRecorder
from firth.models.bias_attention import BiasAttention, fits_bias_attention
from firth.models.kv_cache import KeyValuePrefix, KVCache
from firth.models.layers import AttentionContext
from firth.models.masks import Mask
from firth.models.positions import DisentangledBias, RelativeBias, Rotary, rotary_angles
from firth.models.short_attention import ShortAttention, fits_short_attention
from firth.models.transformer_config import TransformerConfig
from firth.utils.devices import allows_tf32, device_spec, has_tile_kernels

HALF_DTYPES = (torch.bfloat16, torch.float16)
TILE_HEAD_DIMS = (32, 64, 128)  # of the Triton kernels


@dataclass(frozen=True)
class LayerInputs:
    """What tokens may attend to besides their own sequence, and what records attention."""

    memory: Tensor | None = None  # the encoder's output
    memory_mask: Mask | None = None
    cache: KVCache | None = None  # keys and values of earlier tokens
    prefix: KeyValuePrefix = field(default_factory=KeyValuePrefix)  # trained keys and values
    recorder: AttentionRecorder | None = None

    @property
    def is_empty(self) -> bool:
        others = (self.memory_mask, self.cache, self.recorder)
        return all(other is None for other in others) and not self.prefix.own


@dataclass(frozen=True)
class AttentionChoice:
    """Choose the attention backends of a forward pass from its inputs."""

    config: TransformerConfig
    layers: int  # of the stack
    relative: RelativeBias | DisentangledBias | None
    x: Tensor  # the input of the first layer
    mask: Mask
    inputs: LayerInputs
    dense: bool  # explicit masks instead of fused kernels
    training: bool

    @property
    def windows(self) -> list[int]:
        """The sliding window of each layer; 0: none."""
        config = self.config
        return [config.window if i in config.windowed_layers else 0 for i in range(self.layers)]

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of matrix products: of the hidden states, or of autocast."""
        kind = self.x.device.type
        autocast = torch.is_autocast_enabled(kind) and self.x.dtype != torch.float64
        return torch.get_autocast_dtype(kind) if autocast else self.x.dtype

    @cached_property
    def has_varlen_kernels(self) -> bool:
        half = self.dtype in HALF_DTYPES
        return half and has_varlen_kernels(self.x.device, self.config.head_dim)

    @cached_property
    def _has_tile_kernels(self) -> bool:
        """Whether Triton kernels compute what these layers do: without dropout, and of the packed
        queries, keys and values of their input alone."""
        config, inputs = self.config, self.inputs
        dropout = self.training and config.attention_dropout
        unsupported = config.qk_norm or config.bottleneck_size or dropout or self.dense
        others = inputs.cache is not None or inputs.recorder is not None or inputs.prefix.own
        return (
            not (unsupported or others)
            and config.num_kv_heads == config.num_heads
            and config.head_dim in TILE_HEAD_DIMS
            and has_tile_kernels(device_spec(self.x.device))
        )

    @property
    def _rounds_to_tf32(self) -> bool:
        """Whether this is a forward pass alone whose products of float32 may be TF32."""
        return allows_tf32() and not torch.is_grad_enabled() and self.dtype == torch.float32

    def has_short_attention(self, window: int) -> bool:
        """Tell whether layers with this window use the kernel for short sequences."""
        return (
            self._has_tile_kernels
            and self.relative is None
            and (self.has_varlen_kernels or self._rounds_to_tf32)
            and fits_short_attention(self.mask, window)
        )

    def _has_bias_attention(self, window: int) -> bool:
        """Tell whether layers with this window use the kernels for T5's bias."""
        unsupported = window or self.config.position_embedding == "rotary"
        kernels = self._has_tile_kernels and self.has_varlen_kernels
        return kernels and not unsupported and fits_bias_attention(self.mask)

    def self_attention(self, window: int) -> AttentionBackend | PackedAttention:
        """Choose the backend of layers with this window."""
        mask, cache = self.mask, self.inputs.cache
        bias = self.relative if isinstance(self.relative, RelativeBias) else None
        if self.has_short_attention(window):
            return ShortAttention(mask)
        if bias is not None and self._has_bias_attention(window):
            return BiasAttention(mask, bias, self.dtype)
        if cache is not None and cache.used:
            return CachedAttention(mask, cache, window, bias)
        return attention_backend(
            mask,
            window=window,
            bias=bias,
            varlen=self.has_varlen_kernels,
            has_score_terms=isinstance(self.relative, DisentangledBias),
            dense=self.dense,
            # a cache holds the prefix itself
            prefix_length=self.inputs.prefix.length if cache is None else 0,
        )

    def cross_attention(self) -> AttentionBackend | None:
        """Choose the backend of attention to the encoder's output, if there is one."""
        inputs = self.inputs
        if inputs.memory_mask is None:
            return None
        return cross_attention_backend(
            self.mask if inputs.cache is None else inputs.cache.group_by_source(self.mask),
            inputs.memory_mask,
            varlen=self.has_varlen_kernels,
            prefix_length=len(inputs.prefix.cross[0][0]) if inputs.prefix.cross else 0,
        )

    def contexts(self, positions: Tensor) -> list[AttentionContext]:
        """Build the attention context of each layer; layers of one kind share a backend."""
        config, cache, prefix = self.config, self.inputs.cache, self.inputs.prefix
        cross_backend, by_window = self.cross_attention(), {}
        for window in set(self.windows):
            backend, angles = self.self_attention(window), None
            if config.position_embedding == "rotary":
                rotated = backend.positions if isinstance(backend, ShortAttention) else positions
                angles = rotary_angles(rotated, Rotary.of_layer(config, bool(window)))
            by_window[window] = AttentionContext(
                backend=backend,
                rope_angles=angles,
                distances=self.relative if isinstance(self.relative, DisentangledBias) else None,
                memory=self.inputs.memory,
                cross_backend=cross_backend,
            )
        contexts = [by_window[window] for window in self.windows]
        if prefix.cross:
            pairs = zip(contexts, prefix.cross, strict=True)
            contexts = [replace(context, cross_prefix=cross) for context, cross in pairs]
        if prefix.own and cache is None:
            pairs = zip(contexts, prefix.own, strict=True)
            contexts = [replace(context, prefix=own) for context, own in pairs]
        if cache is None:
            return contexts
        writes = zip(contexts, cache.writes(self.mask, positions), strict=True)
        return [replace(context, cache_write=write) for context, write in writes]
