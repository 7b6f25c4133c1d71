"""The stack of Transformer blocks; the mask makes it an encoder or a decoder.

N  tokens of the batch     E  embedding size     W  hidden size
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from firth.models.attention import exclude_from_compile, has_equal_lengths
from firth.models.attention_choice import AttentionChoice, LayerInputs
from firth.models.attention_recording import AttentionRecorder
from firth.models.blocks import Block, BottleneckBlock, SharedBlock
from firth.models.cuda_graphs import CudaGraphRunner
from firth.models.kv_cache import KeyValuePrefix, KVCache
from firth.models.layers import make_norm
from firth.models.masks import Mask
from firth.models.positions import DisentangledBias, RelativeBias, sinusoidal_embedding
from firth.models.transformer_config import TransformerConfig
from firth.utils.devices import device_spec
from firth.utils.errors import MismatchError


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


def _require_gradient(x: Tensor, block: nn.Module) -> Tensor:
    """Let the input of the lowest trained block require a gradient, as that of those above does.

    Otherwise torch.compile would compile the block for both cases.
    """
    if x.requires_grad or not any(weight.requires_grad for weight in block.parameters()):
        return x
    return x.detach().requires_grad_(torch.is_grad_enabled())


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
            self.check_length(mask.max_length + prefix.length)
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
        contexts = self._attention_choice(x, mask, inputs).contexts(positions)
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
                if self.compiled and self.training:
                    x = _require_gradient(x, block)
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
        choice = self._attention_choice(x, mask, LayerInputs())
        if mask.pattern == "prefix":
            return all(choice.has_short_attention(window) for window in choice.windows)
        varlen = self.relative is None and not self.dense and choice.has_varlen_kernels
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

    def check_length(self, length: int) -> None:
        """Raise MismatchError for sequences longer than the learned positions."""
        if self.config.position_embedding == "learned" and length > self.config.max_positions:
            raise MismatchError(
                f"A sequence with its trained prefix has {length} positions, but the model has "
                f"{self.config.max_positions}; truncate the sequence."
            )

    def _attention_choice(self, x: Tensor, mask: Mask, inputs: LayerInputs) -> AttentionChoice:
        own = self.config, self.layers, self.relative
        return AttentionChoice(*own, x, mask, inputs, self.dense, self.training)
