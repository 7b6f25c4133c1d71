"""The stack of Transformer blocks; the mask makes it an encoder or a decoder.

N  tokens of the batch     E  embedding size     W  hidden size
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from firth.models.attention import (
    AttentionBackend,
    CachedAttention,
    PackedAttention,
    attention_backend,
    cross_attention_backend,
    exclude_from_compile,
    has_equal_lengths,
    has_varlen_kernels,
)
from firth.models.attention_recording import AttentionRecorder
from firth.models.bias_attention import BiasAttention, has_bias_attention
from firth.models.blocks import Block, BottleneckBlock, SharedBlock
from firth.models.cuda_graphs import CudaGraphRunner
from firth.models.kv_cache import KeyValuePrefix, KVCache
from firth.models.layers import AttentionContext, make_norm
from firth.models.masks import Mask
from firth.models.positions import (
    DisentangledBias,
    RelativeBias,
    Rotary,
    rotary_angles,
    sinusoidal_embedding,
)
from firth.models.short_attention import ShortAttention, has_short_attention
from firth.models.transformer_config import TransformerConfig
from firth.utils.devices import device_spec
from firth.utils.errors import MismatchError

HALF_DTYPES = (torch.bfloat16, torch.float16)


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


class Embedding(nn.Module):
    """Add position and segment embeddings to token embeddings; norm, dropout, projection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        # MobileBERT projects before it adds positions and segments, ALBERT after.
        size = config.hidden_size if config.trigrams else config.token_embedding_size
        rows = config.max_positions + config.position_offset
        learned = config.position_embedding == "learned"
        self.positions = nn.Embedding(rows, size) if learned else None
        self.segments = nn.Embedding(config.num_segments, size) if config.num_segments else None
        self.norm = make_norm(config, size) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        inputs = config.token_embedding_size * (3 if config.trigrams else 1)
        projects = config.embedding_size or config.trigrams
        self.project = nn.Linear(inputs, config.hidden_size) if projects else None

    def forward(self, x: Tensor, mask: Mask, positions: Tensor, segments: Tensor | None) -> Tensor:
        config = self.config
        if config.embedding_scale:
            x = x * torch.tensor(config.hidden_size**0.5, dtype=x.dtype)
        if config.trigrams and self.project is not None:
            x = self.project(_concatenate_neighbours(x, mask))
        if self.positions is not None:
            x = x + self.positions(positions + config.position_offset)
        elif config.position_embedding == "sinusoidal":
            x = x + sinusoidal_embedding(positions, x.shape[-1]).to(x.dtype)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(positions) if segments is None else segments)
        x = self.dropout(self.norm(x))
        return self.project(x) if self.project is not None and not config.trigrams else x


def _concatenate_neighbours(x: Tensor, mask: Mask) -> Tensor:
    """Concatenate the next, this and the previous embedding; zero beyond a sequence's ends."""
    is_last = torch.cat([mask.positions[1:] == 0, mask.positions.new_ones(1).bool()])
    following = x.roll(-1, 0).masked_fill(is_last[:, None], 0.0)
    previous = x.roll(1, 0).masked_fill((mask.positions == 0)[:, None], 0.0)
    return torch.cat([following, x, previous], dim=-1)  # (N, 3 E)


def _make_block(config: TransformerConfig, memory_size: int, index: int) -> nn.Module:
    if config.bottleneck_size:
        return BottleneckBlock(config)
    skip_pre_norm = not config.first_norm and index == 0
    return Block(config, memory_size=memory_size, skip_pre_norm=skip_pre_norm)


class Stack(nn.Module):
    """Embedding layers, blocks and the final norm of an encoder or a decoder."""

    blocks: nn.ModuleList

    def __init__(
        self,
        config: TransformerConfig,
        layers: int,
        *,
        decoder: bool,
        memory_size: int = 0,
        encoder: Stack | None = None,
    ) -> None:
        """`memory_size`: the hidden size of an encoder to attend to; 0: there is none.

        With an `encoder`, the blocks share its self-attention and feed-forward layers.
        """
        super().__init__()
        self.config, self.layers = config, layers
        # set by `firth.adapt.prompt_tuning`, trained:
        self.prompt: nn.Module | None = None  # embeddings before every sequence
        self.prefix: nn.Module | None = None  # keys and values before every sequence
        self.checkpointing = False  # keep only the input of blocks, recompute their activations
        self.dense = False  # explicit masks instead of fused kernels (for tests)
        self.float32_residual = False  # float32 hidden states between blocks, even under autocast
        self.compiled = False  # by torch.compile
        self.graph_runner: CudaGraphRunner | None = None  # replays blocks as CUDA graphs
        self.embedding = Embedding(config)
        self.relative: RelativeBias | DisentangledBias | None = None
        if config.relative_attention == "bias":
            shape = config.relative_buckets, config.relative_max_distance, config.num_heads
            self.relative = RelativeBias(*shape, bidirectional=not decoder)
        elif config.relative_attention == "disentangled":
            shape = config.hidden_size, config.relative_buckets, config.relative_max_distance
            self.relative = DisentangledBias(*shape, config.norm_eps)
        self.blocks = nn.ModuleList(
            _make_block(config, memory_size, i)
            if encoder is None
            else SharedBlock(config, memory_size, encoder.blocks[i])
            for i in range(1 if config.share_layers else layers)
        )
        last = config.norm_position != "post"
        self.final_norm = make_norm(config, config.hidden_size) if last else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        *,
        segments: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: KVCache | None = None,
        layers: list[Tensor] | None = None,
        recorder: AttentionRecorder | None = None,
        output_layer: int | None = None,
    ) -> Tensor:
        """Compute hidden states from token embeddings: (N, E) -> (N, W).

        `layers`, if given, receives the input of every block and the final output, and `recorder`
        the queries and keys of its layers. With an `output_layer`, return the input of that block;
        it and those above it do not run.
        """
        prefix = self.prefix() if self.prefix is not None else KeyValuePrefix()
        if cache is None or not cache.used:
            self._check_length(mask.max_length + prefix.length)
        if cache is not None and not cache.used and prefix.own:
            cache.write_prefix(prefix)
        earlier = prefix.length if cache is None else cache.lengths[mask.sequence_ids]
        positions = mask.positions + earlier
        x = self.embedding(x, mask, positions, segments)
        kind = x.device.type
        on_gpu = device_spec(x.device).type == "cuda"
        if on_gpu and torch.is_autocast_enabled(kind) and not self.float32_residual:
            # halves the memory traffic of the residual connections
            x = x.to(torch.get_autocast_dtype(kind))
        inputs = LayerInputs(memory, memory_mask, cache, prefix, recorder)
        plain = layers is None and output_layer is None and inputs.is_empty
        if self.graph_runner is not None and plain and self._is_capturable(x, mask):
            x = self.graph_runner(self._run_blocks, x, mask, positions, self._weights())
        else:
            x = self._run_blocks(x, mask, positions, inputs, layers, output_layer)
        if cache is not None:
            cache.advance(mask)
        return x

    def _run_blocks(
        self,
        x: Tensor,
        mask: Mask,
        positions: Tensor,
        inputs: LayerInputs | None = None,
        layers: list[Tensor] | None = None,
        output_layer: int | None = None,
    ) -> Tensor:
        """Apply all blocks and the final norm, or the blocks below one."""  # (N, W) -> (N, W)
        inputs = inputs or LayerInputs()
        contexts = self._contexts(x, mask, positions, inputs)
        if inputs.recorder is not None:
            bias = self.relative if isinstance(self.relative, RelativeBias) else None
            contexts = inputs.recorder.wrap(contexts, mask, self.config, bias)
        # Blocks are compiled for the shapes of training only.
        eager = self.compiled and not self.training
        with torch.compiler.set_stance("force_eager") if eager else nullcontext():
            for i in range(self.layers):
                if layers is not None:
                    layers.append(x)
                if i == output_layer:
                    return x
                block = self.blocks[0 if self.config.share_layers else i]
                if self.training and self.checkpointing:
                    x = checkpoint(block, x, contexts[i], use_reentrant=False)
                else:
                    x = block(x, contexts[i])
        x = self.final_norm(x)
        if layers is not None:
            layers.append(x)
        return x

    def _is_capturable(self, x: Tensor, mask: Mask) -> bool:
        """Tell whether this is training, and batches of one shape use the same kernels."""
        if not self.training or self.checkpointing or not torch.is_grad_enabled():
            return False
        if mask.pattern == "prefix":
            window = self.config.window if self.config.windowed_layers else 0
            return self._has_short_attention(x, mask, window, LayerInputs())
        varlen = self.relative is None and not self.dense and self._has_varlen_kernels(x)
        return varlen or has_equal_lengths(mask)

    def _weights(self) -> list[nn.Parameter]:
        """Return the parameters of all layers between the embedding and the heads."""
        modules = (self.relative, self.blocks, self.final_norm)
        return [
            weight for module in modules if module is not None for weight in module.parameters()
        ]

    def compile_blocks(self, dynamic: bool | None = True) -> None:
        """Compile embeddings and blocks with torch.compile; DeBERTa's blocks are left eager.

        `dynamic=True` compiles for any number of tokens; None for the first number, and for any
        number when a second one occurs.
        """
        exclude_from_compile()
        if not isinstance(self.relative, DisentangledBias):
            self.compiled = True
            for module in (self.embedding, *self.blocks):
                module.compile(dynamic=dynamic)

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a sequence, less the active prompts and prefixes."""
        prompts = len(self.prompt()) if self.prompt is not None else 0
        prefixes = self.prefix().length if self.prefix is not None else 0
        return self.config.max_positions - prompts - prefixes

    def _check_length(self, length: int) -> None:
        if self.config.position_embedding == "learned" and length > self.config.max_positions:
            raise MismatchError(
                f"A sequence with its trained prefix has {length} positions, but the model has "
                f"{self.config.max_positions}; truncate the sequence."
            )

    def _contexts(
        self, x: Tensor, mask: Mask, positions: Tensor, inputs: LayerInputs
    ) -> list[AttentionContext]:
        """Build the attention context of each layer; layers of one kind share a backend."""
        config, cache, prefix, cross_backend = self.config, inputs.cache, inputs.prefix, None
        if inputs.memory_mask is not None:
            cross_backend = cross_attention_backend(
                mask if cache is None else cache.group_by_source(mask),
                inputs.memory_mask,
                varlen=self._has_varlen_kernels(x),
                prefix_length=len(prefix.cross[0][0]) if prefix.cross else 0,
            )
        by_kind = {}  # is the layer windowed? -> its context
        for windowed in {i in config.windowed_layers for i in range(self.layers)}:
            window = config.window if windowed else 0
            backend = self._backend(x, mask, window, inputs)
            angles = None
            if config.position_embedding == "rotary":
                rotated = backend.positions if isinstance(backend, ShortAttention) else positions
                angles = rotary_angles(rotated, Rotary.of_layer(config, windowed))
            by_kind[windowed] = AttentionContext(
                backend=backend,
                rope_angles=angles,
                distances=self.relative if isinstance(self.relative, DisentangledBias) else None,
                memory=inputs.memory,
                cross_backend=cross_backend,
            )
        contexts = [by_kind[i in config.windowed_layers] for i in range(self.layers)]
        if prefix.cross:
            pairs = zip(contexts, prefix.cross, strict=True)
            contexts = [replace(context, cross_prefix=cross) for context, cross in pairs]
        if prefix.own and cache is None:
            pairs = zip(contexts, prefix.own, strict=True)
            contexts = [replace(context, prefix=own) for context, own in pairs]
        if cache is None:
            return contexts
        writes = zip(contexts, cache.writes(mask, positions), strict=True)
        return [replace(context, cache_write=write) for context, write in writes]

    def _has_varlen_kernels(self, x: Tensor) -> bool:
        return _compute_dtype(x) in HALF_DTYPES and has_varlen_kernels(
            x.device, self.config.head_dim
        )

    def _has_short_attention(self, x: Tensor, mask: Mask, window: int, inputs: LayerInputs) -> bool:
        """Tell whether the kernel for short sequences computes attention here."""
        return (
            self._is_plain(inputs)
            and (self._has_varlen_kernels(x) or _rounds_to_tf32(x))
            and has_short_attention(self.config, mask, window, training=self.training)
        )

    def _has_bias_attention(self, x: Tensor, mask: Mask, window: int, inputs: LayerInputs) -> bool:
        """Tell whether the kernels for T5's bias compute attention here."""
        return (
            self._is_plain(inputs)
            and self._has_varlen_kernels(x)
            and has_bias_attention(self.config, mask, window, training=self.training)
        )

    def _is_plain(self, inputs: LayerInputs) -> bool:
        """Tell whether layers attend to the queries, keys and values of their input alone."""
        special = self.dense or inputs.cache is not None or inputs.recorder is not None
        return not (special or inputs.prefix.own)

    def _backend(
        self, x: Tensor, mask: Mask, window: int, inputs: LayerInputs
    ) -> AttentionBackend | PackedAttention:
        if self._has_short_attention(x, mask, window, inputs):
            return ShortAttention(mask)
        bias = self.relative if isinstance(self.relative, RelativeBias) else None
        if bias is not None and self._has_bias_attention(x, mask, window, inputs):
            return BiasAttention(mask, bias, _compute_dtype(x))
        if inputs.cache is not None and inputs.cache.used:
            return CachedAttention(mask, inputs.cache, window, bias)
        return attention_backend(
            mask,
            window=window,
            bias=bias,
            varlen=self._has_varlen_kernels(x),
            has_score_terms=isinstance(self.relative, DisentangledBias),
            dense=self.dense,
            # a cache holds the prefix itself
            prefix_length=inputs.prefix.length if inputs.cache is None else 0,
        )


def _compute_dtype(x: Tensor) -> torch.dtype:
    """Return the type of matrix products: of the tensor, or of autocast."""
    kind = x.device.type
    autocast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if autocast else x.dtype


def _rounds_to_tf32(x: Tensor) -> bool:
    """Tell whether this is a forward pass alone whose products of float32 may be TF32."""
    fast = torch.get_float32_matmul_precision() != "highest"
    return fast and not torch.is_grad_enabled() and _compute_dtype(x) == torch.float32
