"""Decoding steps on a GPU with Triton kernels of our own; the C counterpart is `c_decoder.py`.

B  sequences     W  hidden size     V  vocabulary     T  cache positions
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from firth.models.attention import next_power_of_two
from firth.models.blocks import Block
from firth.models.heads import LanguageHead
from firth.models.kv_cache import KVCache
from firth.models.layers import FusedLinear, GemmaRMSNorm
from firth.models.plain_decoder import is_plain_decoder
from firth.models.positions import Rotary, rotary_angles
from firth.models.transformer import Transformer
from firth.models.triton_decoder import (
    attend_kernel,
    embed_kernel,
    matrix_kernel,
    norm_kernel,
    vector_kernel,
)
from firth.utils.devices import allows_tf32, device_spec, has_tile_kernels
from firth.utils.triton_language import gdc_wait

MAX_SEQUENCES = 512  # of a batch: larger ones were not measured
MAX_FLOAT32_SEQUENCES = 16  # for larger batches torch's float32 products are faster
SPLIT_POSITIONS = 256  # cache positions that one program of attention reads, at least
MAX_SPLITS = 16
PROGRAMS = 128  # that keep a GPU busy
MAX_PROGRAMS = 264  # of the product of one row
VECTOR_TILE = 16_384  # weights that a program of the product of one row holds
SHARED_MEMORY = 200_000  # bytes of a program's tiles; Hopper has 232,448
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEAD_DIMS = (32, 64, 128, 256)
NORMS = {nn.Identity: "none", nn.LayerNorm: "layer", nn.RMSNorm: "rms"}
NORMS |= {GemmaRMSNorm: "rms-plus-one"}
SUPPORTED_LAYERS = {FusedLinear, nn.Linear, nn.Embedding, *NORMS}


def is_supported(network: Transformer, cache: KVCache) -> bool:
    """Tell whether the kernels compute what a model does, and are fast for this batch."""
    limit = MAX_FLOAT32_SEQUENCES if network.dtype == torch.float32 else MAX_SEQUENCES
    has_kernels = has_tile_kernels(device_spec(network.device))
    return has_kernels and len(cache.lengths) <= limit and is_supported_network(network)


def is_supported_network(network: Transformer) -> bool:
    """Tell whether the kernels compute what a model does."""
    config, embedding = network.config, network.stack.embedding
    dtypes = {weight.dtype for weight in network.parameters()}
    head = dict(network.heads.items()).get("language")
    return (
        is_plain_decoder(network, SUPPORTED_LAYERS)
        and isinstance(head, LanguageHead)
        and head.transform is None
        and head.output is None
        and head.scale == 1.0
        and config.norm_position == "pre"
        and config.head_dim in HEAD_DIMS
        and type(embedding.norm) is nn.Identity
        and (embedding.positions is None or embedding.positions.weight.is_contiguous())
        and network.tokens.weight.is_contiguous()
        and len(dtypes) == 1
        and dtypes <= set(DTYPES)
    )


class GpuDecoder:
    """Decoding steps of a model for the sequences of a cache.

    With several adjacent sequences of each prompt, they are reordered without copying the cache:
    `origins` has, for each sequence and position, the row of the cache that holds it. All rows of a
    prompt begin with `shared` equal positions, which are read from the first.
    """

    def __init__(
        self, network: Transformer, cache: KVCache, per_prompt: int = 1, shared: int = 0
    ) -> None:
        config, device = network.config, network.device
        self.network, self.cache = network, cache
        self.max_sequences, self.capacity = len(cache.lengths), cache.capacity
        rows = self.max_sequences
        self.precision = "tf32" if allows_tf32() else "ieee"
        self.origins, self.shared = None, shared
        if per_prompt > 1:
            row = torch.arange(rows, device=device, dtype=torch.int)[:, None]
            self.origins = row.repeat(1, self.capacity)
            self.origins[:, :shared] = row // per_prompt * per_prompt
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        empty = partial(torch.empty, device=device, dtype=network.dtype)
        self.hidden = empty(rows, config.hidden_size)
        self.normed = torch.empty_like(self.hidden)
        # A kernel starts before the one before has finished; Triton's interpreter cannot do that.
        overlap = has_tile_kernels(device_spec(device)) and gdc_wait is not None
        self.launch = {"overlap": overlap} | ({"launch_pdl": True} if overlap else {})
        self.qkv, self.inner = empty(rows, queries + 2 * keys), empty(rows, config.ffn_size)
        self.attended = empty(rows, queries)
        # The results of attention to each split of the cached positions, and their log-sum-exps.
        parts = max(1, PROGRAMS // config.num_kv_heads)
        self.parts = torch.empty(parts, queries, device=device)
        self.log_sums = torch.empty(parts, config.num_heads, device=device)
        self.angles: list[tuple[Tensor, Tensor] | tuple[None, None]] = [(None, None)] * 2
        if config.position_embedding == "rotary":
            positions = torch.arange(self.capacity, device=device)
            self.angles = [
                rotary_angles(positions, Rotary.of_layer(config, windowed))
                for windowed in (False, True)
            ]

    def _splits(self, count: int) -> int:
        """Return how many programs share the cached positions of a sequence, for `count` sequences.

        It is a power of two: kernels are compiled for each number.
        """
        programs = count * self.network.config.num_kv_heads
        most = min(self.capacity // SPLIT_POSITIONS, PROGRAMS // programs, MAX_SPLITS)
        return 1 << max(1, most).bit_length() - 1

    def reorder(self, rows: Tensor) -> None:
        """Continue with these sequences, in this order; each stays with its prompt."""
        if self.origins is not None:
            generated = self.origins[:, self.shared :]
            generated.copy_(generated[rows])
            self.cache.lengths.copy_(self.cache.lengths[rows])

    def copy_origins(self) -> None:
        """Copy to each row of the cache the positions it has in others."""
        if self.origins is not None:
            positions = torch.arange(self.capacity, device=self.origins.device)
            for layer in self.cache.layers:
                layer.pairs.copy_(layer.pairs[self.origins, positions])

    def step(self, tokens: Tensor, cache: KVCache, logits: Tensor) -> None:
        """Process one token per sequence: extend the cache and compute the next-token logits."""
        assert cache is self.cache
        assert logits.is_contiguous()
        with torch.cuda.device_of(logits):
            self._run(tokens, logits)

    def _run(self, tokens: Tensor, logits: Tensor) -> None:
        network, stack, count = self.network, self.network.stack, len(tokens)
        windowed = stack.config.windowed_layers
        self._embed(tokens)
        for i, layer in enumerate(self.cache.layers):
            block = stack.blocks[0 if stack.config.share_layers else i]
            assert isinstance(block, Block)
            attention, forward = block.attention, block.feed_forward
            norm = block.attention_norm.before
            self._multiply(attention.qkv, self.hidden, self.qkv[:count], norm=norm)
            attended = self._attend(attention, layer.pairs, count, windowed=i in windowed)
            self._multiply(attention.output, attended, self.hidden[:count])
            norm, inner = block.feed_forward_norm.before, self.inner[:count]
            self._multiply(forward.up, self.hidden, inner, norm=norm, activation=forward.activation)
            self._multiply(forward.down, inner, self.hidden[:count])
        head = network.heads["language"]
        assert isinstance(head, LanguageHead)
        matrix = _Matrix(head.matrix(network.tokens.weight), head.bias)
        self._multiply(matrix, self.hidden, logits[:count], norm=stack.final_norm)

    def _embed(self, tokens: Tensor) -> None:
        network, config = self.network, self.network.config
        learned, scale = network.stack.embedding.positions, None
        if config.embedding_scale:
            scale = float(torch.tensor(config.hidden_size**0.5, dtype=network.dtype))
        positions = None if learned is None else learned.weight[config.position_offset :]
        width = config.hidden_size
        embed_kernel[(len(tokens),)](
            tokens,
            self.cache.lengths,
            network.tokens.weight,
            positions,
            self.origins,
            self.hidden,
            width,
            self.capacity,
            scale,
            tile=next_power_of_two(width),
            **self.launch,
        )

    def _attend(self, attention: Any, pairs: Tensor, count: int, *, windowed: bool) -> Tensor:
        """Write the new keys and values, and attend to all: the result, or that of each split."""
        config, splits = self.network.config, self._splits(count)
        query_norm, key_norm = attention.query_norm, attention.key_norm
        cos, sin = self.angles[windowed]
        out = self.attended[:count] if splits == 1 else self.parts[: count * splits]
        attend_kernel[(count, config.num_kv_heads, splits)](
            self.qkv,
            pairs,
            self.origins,
            self.cache.lengths,
            cos,
            sin,
            *_norm_weights(query_norm),
            *_norm_weights(key_norm),
            getattr(query_norm, "eps", 0.0),
            out,
            self.log_sums,
            config.scale,
            self.capacity,
            config.window if windowed else None,
            norm=_norm_kind(query_norm),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            half=config.head_dim // 2,
            splits=splits,
            precision=self.precision,
            group_tile=max(16, next_power_of_two(config.num_heads // config.num_kv_heads)),
            **_attention_tiles(count * config.num_kv_heads, config.head_dim * pairs.itemsize),
            **self.launch,
        )
        return out

    def _multiply(
        self,
        matrix: nn.Linear | _Matrix,
        x: Tensor,
        out: Tensor,
        *,
        norm: nn.Module | None = None,
        activation: str = "none",
    ) -> None:
        """Compute `out` from x, normalized first; add to it if it is the residual stream."""
        weight, count = matrix.weight, len(out)
        gated = len(weight) == 2 * out.shape[1]
        adds = out.data_ptr() == self.hidden.data_ptr()
        options: dict[str, Any] = dict(
            log_sums=self.log_sums,
            weight=weight,
            bias=matrix.bias,
            residual=out if adds else None,
            out=out,
            rows=count,
            outputs=out.shape[1],
            output_stride=weight.stride(0),
            input_stride=weight.stride(1),
            inputs=weight.shape[1],
            activation=activation,
            gated=gated,
            head_dim=self.network.config.head_dim,
            splits=max(1, len(x) // count) if x.data_ptr() == self.parts.data_ptr() else 1,
            **self.launch,
        )
        if count == 1:
            tiles = _vector_tiles(out.shape[1], weight.shape[1])
            norm_weight, norm_bias = _norm_weights(norm)
            vector_kernel[(min(MAX_PROGRAMS, -(-out.shape[1] // tiles["out_tile"])),)](
                x,
                norm_weight=norm_weight,
                norm_bias=norm_bias,
                eps=getattr(norm, "eps", 0.0),
                norm=_norm_kind(norm),
                **options,
                **tiles,
            )
            return
        if _norm_kind(norm) != "none":
            x = self._normalise(x, norm, count)
        tiles = _matrix_tiles(count, out.shape[1], weight, gated)
        grid = -(-out.shape[1] // tiles["out_tile"]), -(-count // tiles["row_tile"])
        matrix_kernel[grid](x, precision=self.precision, **options, **tiles)

    def _normalise(self, x: Tensor, norm: Any, count: int) -> Tensor:
        width = x.shape[1]
        norm_kernel[(count,)](
            *(x, *_norm_weights(norm), norm.eps, self.normed),
            size=width,
            norm=_norm_kind(norm),
            tile=next_power_of_two(width),
            **self.launch,
        )
        return self.normed


class _Matrix(NamedTuple):
    """The output matrix, which may be that of the token embeddings."""

    weight: Tensor
    bias: Tensor | None


def _attention_tiles(programs: int, head_bytes: int) -> dict[str, int]:
    """Return how many cached positions a program reads at a time: fewer where there are many."""
    if programs > 4 * PROGRAMS:
        return dict(tile=32, num_warps=1)
    return dict(tile=64 if head_bytes < 1024 else 32, num_warps=4)


def _vector_tiles(outputs: int, inputs: int) -> dict[str, int]:
    """Return the tile sizes for one row: all inputs at once, so that their loads overlap."""
    in_tile = next_power_of_two(inputs)
    most = max(1, min(VECTOR_TILE // in_tile, max(4, outputs // PROGRAMS)))
    return dict(in_tile=in_tile, out_tile=1 << most.bit_length() - 1, num_warps=8)


def _matrix_tiles(rows: int, outputs: int, weight: Tensor, gated: bool) -> dict[str, int]:
    """Return the tile sizes of a product, so that there are about as many programs as cores."""
    in_tile = min(128 if rows <= 16 else 64, max(16, next_power_of_two(weight.shape[1])))
    row_tile = min(64, max(16, next_power_of_two(rows)))
    out_tile = 32 if outputs <= 4096 else 128
    if rows <= 16 and outputs <= 4096:
        out_tile = 16
    # Tiles are loaded while those before are multiplied, as many as fit.
    tile_bytes = in_tile * (row_tile + out_tile * (1 + gated)) * weight.itemsize
    stages = min(4, 1 + SHARED_MEMORY // tile_bytes)
    tiles = dict(row_tile=row_tile, out_tile=out_tile, in_tile=in_tile)
    return tiles | dict(num_warps=4, num_stages=stages)


def _norm_kind(norm: nn.Module | None) -> str:
    return "none" if norm is None else NORMS[type(norm)]


def _norm_weights(norm: nn.Module | None) -> tuple[Tensor | None, Tensor | None]:
    return getattr(norm, "weight", None), getattr(norm, "bias", None)


def make_gpu_decoder(
    network: Transformer, cache: KVCache, per_prompt: int = 1, shared: int = 0
) -> GpuDecoder | None:
    """Build a decoder; None if the model or the device does not support it."""
    if not is_supported(network, cache):
        return None
    return GpuDecoder(network, cache, per_prompt, shared)
