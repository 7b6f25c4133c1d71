"""Decoding steps on a GPU with Triton kernels of our own; the C counterpart is `c_decoder.py`.

B  sequences     W  hidden size     V  vocabulary     T  cache positions
"""

from __future__ import annotations

from functools import partial
from typing import Any

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
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
VECTOR_TILE = 16_384  # weights that a program of the product of one row holds
HEAD_DIMS = (32, 64, 128, 256)
NORMS = {nn.Identity: "none", nn.LayerNorm: "layer", nn.RMSNorm: "rms"}
NORMS |= {GemmaRMSNorm: "rms-plus-one"}
SUPPORTED_MODULES = {FusedLinear, nn.Linear, nn.Embedding, *NORMS}


def is_supported(network: Transformer, cache: KVCache) -> bool:
    """Tell whether the kernels support a model and are fast for this batch."""
    limit = MAX_FLOAT32_SEQUENCES if network.dtype == torch.float32 else MAX_SEQUENCES
    supported = has_tile_kernels(device_spec(network.device)) and is_fit(network)
    return supported and len(cache.lengths) <= limit


def is_fit(network: Transformer) -> bool:
    """Tell whether the kernels compute what a model does."""
    config, embedding = network.config, network.stack.embedding
    dtypes = {weight.dtype for weight in network.parameters()}
    head = dict(network.heads.items()).get("language")
    return (
        is_plain_decoder(network, SUPPORTED_MODULES)
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
        programs = rows * config.num_kv_heads
        splits = min(self.capacity // SPLIT_POSITIONS, PROGRAMS // programs, MAX_SPLITS)
        self.splits = max(1, splits)
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
        overlap = device.type == "cuda" and gdc_wait is not None
        self.launch = {"overlap": overlap} | ({"launch_pdl": True} if overlap else {})
        self.qkv, self.inner = empty(rows, queries + 2 * keys), empty(rows, config.ffn_size)
        part_dtype = torch.float32 if self.splits > 1 else network.dtype
        self.attended = empty(rows, self.splits, queries, dtype=part_dtype)
        self.part_weights = empty(rows, self.splits, config.num_heads, dtype=torch.float32)
        self.angles: list[tuple[Tensor, Tensor] | tuple[None, None]] = [(None, None)] * 2
        if config.position_embedding == "rotary":
            positions = torch.arange(self.capacity, device=device)
            self.angles = [
                rotary_angles(positions, Rotary.of_layer(config, windowed))
                for windowed in (False, True)
            ]

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
        with torch.cuda.device_of(logits):
            self._run(tokens, cache, logits)

    def _run(self, tokens: Tensor, cache: KVCache, logits: Tensor) -> None:
        network, stack, count = self.network, self.network.stack, len(tokens)
        self._embed(tokens, count)
        for i, layer in enumerate(cache.layers):
            block = stack.blocks[0 if stack.config.share_layers else i]
            assert isinstance(block, Block)
            attention, forward = block.attention, block.feed_forward
            self._project(
                attention.qkv, self.hidden, self.qkv, count, norm=block.attention_norm.before
            )
            self._attend(attention, layer.pairs, count, windowed=i in stack.config.windowed_layers)
            self._project(
                attention.output, self.attended, self.hidden, count, adds=True, splits=self.splits
            )
            self._project(
                forward.up,
                self.hidden,
                self.inner,
                count,
                norm=block.feed_forward_norm.before,
                activation=forward.activation,
                gated=forward.gated,
            )
            self._project(forward.down, self.inner, self.hidden, count, adds=True)
        head = network.heads["language"]
        assert isinstance(head, LanguageHead)
        matrix = head.matrix(network.tokens.weight)
        self._multiply(matrix, head.bias, self.hidden, logits, count, norm=stack.final_norm)

    def _embed(self, tokens: Tensor, count: int) -> None:
        network, config = self.network, self.network.config
        learned, scale = network.stack.embedding.positions, None
        if config.embedding_scale:
            scale = float(torch.tensor(config.hidden_size**0.5, dtype=network.dtype))
        positions = None if learned is None else learned.weight[config.position_offset :]
        width = config.hidden_size
        embed_kernel[(count,)](
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

    def _attend(self, attention: Any, pairs: Tensor, count: int, *, windowed: bool) -> None:
        config = self.network.config
        query_norm, key_norm = attention.query_norm, attention.key_norm
        cos, sin = self.angles[windowed]
        attend_kernel[(count, config.num_kv_heads, self.splits)](
            self.qkv,
            pairs,
            self.origins,
            self.cache.lengths,
            cos,
            sin,
            *_norm_weights(query_norm),
            *_norm_weights(key_norm),
            getattr(query_norm, "eps", 0.0),
            self.attended,
            self.part_weights,
            config.scale,
            self.capacity,
            config.window if windowed else None,
            norm=_norm_kind(query_norm),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            half=config.head_dim // 2,
            splits=self.splits,
            precision=self.precision,
            group_tile=max(16, next_power_of_two(config.num_heads // config.num_kv_heads)),
            **_attention_tiles(count * config.num_kv_heads),
            **self.launch,
        )

    def _project(self, module: Any, x: Tensor, out: Tensor, count: int, **options: Any) -> None:
        self._multiply(module.weight, module.bias, x, out, count, **options)

    def _multiply(
        self,
        weight: Tensor,
        bias: Tensor | None,
        x: Tensor,
        out: Tensor,
        count: int,
        *,
        norm: Any = None,
        activation: str = "none",
        gated: bool = False,
        adds: bool = False,
        splits: int = 1,
    ) -> None:
        """Compute `out` for the first `count` rows, or add to it."""
        outputs, inputs = weight.shape
        if gated:
            outputs //= 2
        options: dict[str, Any] = dict(
            inputs=inputs,
            activation=activation,
            gated=gated,
            head_dim=self.network.config.head_dim,
            splits=splits,
            **self.launch,
        )
        ends = bias, out if adds else None, out, count, outputs, *weight.stride()
        if count == 1:
            tiles = _vector_tiles(outputs, inputs)
            vector_kernel[(min(MAX_PROGRAMS, -(-outputs // tiles["out_tile"])),)](
                *(x, self.part_weights, *_norm_weights(norm), weight, *ends),
                getattr(norm, "eps", 0.0),
                norm=_norm_kind(norm),
                **options,
                **tiles,
            )
            return
        if norm is not None and not isinstance(norm, nn.Identity):
            tile = next_power_of_two(inputs)
            norm_kernel[(count,)](
                *(x, *_norm_weights(norm), norm.eps, self.normed),
                size=inputs,
                norm=_norm_kind(norm),
                tile=tile,
                **self.launch,
            )
            x = self.normed
        tiles = _matrix_tiles(count, outputs, inputs)
        grid = -(-outputs // tiles["out_tile"]), -(-count // tiles["row_tile"])
        matrix_kernel[grid](
            *(x, self.part_weights, weight, *ends), precision=self.precision, **options, **tiles
        )


def _attention_tiles(programs: int) -> dict[str, int]:
    """Return how many cached positions a program reads at a time: fewer where there are many."""
    return dict(tile=32, num_warps=1) if programs > 4 * PROGRAMS else dict(tile=64, num_warps=4)


def _vector_tiles(outputs: int, inputs: int) -> dict[str, int]:
    """Return the tile sizes for one row: all inputs at once, so that their loads overlap."""
    in_tile = next_power_of_two(inputs)
    most = max(1, min(VECTOR_TILE // in_tile, max(4, outputs // PROGRAMS)))
    return dict(in_tile=in_tile, out_tile=1 << most.bit_length() - 1, num_warps=8)


def _matrix_tiles(rows: int, outputs: int, inputs: int) -> dict[str, int]:
    """Return the tile sizes of a projection, so that there are about as many programs as cores."""
    in_tile = min(128 if rows <= 16 else 64, max(16, next_power_of_two(inputs)))
    row_tile = min(64, max(16, next_power_of_two(rows)))
    out_tile = 32 if outputs <= 4096 else 128
    if rows <= 16 and outputs <= 4096:
        out_tile = 16
    return dict(row_tile=row_tile, out_tile=out_tile, in_tile=in_tile, num_warps=4, num_stages=4)


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
