"""Decoding steps in C: passes a model's weights to `step.c`.

The ctypes structures mirror those of the C file and point to the model's own weights.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor, nn

from firth.models.heads import LanguageHead
from firth.models.kv_cache import KVCache
from firth.models.layers import FusedLinear, GemmaRMSNorm, Residual
from firth.models.plain_decoder import is_plain_decoder
from firth.models.positions import Rotary
from firth.models.stack import Stack
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.quantization.c_library import load_library
from firth.quantization.int8 import Int8Embedding, Int8Linear

MAX_SEQUENCES = 16  # for larger batches torch's matrix products are faster
NUMBERS_PER_THREAD = 1 << 20  # weights, keys and values; with fewer, threads wait for each other
NORMS = {nn.Identity: 0, nn.LayerNorm: 1, nn.RMSNorm: 2, GemmaRMSNorm: 3}
ACTIVATIONS = {"gelu": 0, "gelu-tanh": 1, "relu": 2, "silu": 3}
# Layers that `step.c` supports.
SUPPORTED_LAYERS = {FusedLinear, Int8Linear, Int8Embedding, nn.Linear, nn.Embedding, *NORMS}


class _Matrix(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("weight", "numbers", "scale", "bias")),
        *((name, c_int64) for name in ("outputs", "inputs", "transposed")),
    ]


class _Norm(ctypes.Structure):
    _fields_ = [("kind", c_int64), ("eps", c_double), ("weight", c_void_p), ("bias", c_void_p)]


class _Residual(ctypes.Structure):
    _fields_ = [(name, _Norm) for name in ("before", "after", "outer")]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Residual) for name in ("attention_norms", "feed_forward_norms")),
        *((name, _Norm) for name in ("query", "key")),
        *((name, _Matrix) for name in ("qkv", "output", "up", "down")),
        ("local", c_int64),
    ]


class _Network(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("layers", "hidden_size", "heads", "kv_heads", "head_dim")),
        *((name, c_int64) for name in ("inner", "gated", "activation", "window")),
        ("head_activation", c_int64),
        *((name, c_double) for name in ("scale", "embedding_scale", "head_scale")),
        *((name, _Matrix) for name in ("embeddings", "transform", "head")),
        ("positions", c_void_p),
        ("frequencies", c_void_p * 2),
        ("rope_factors", c_double * 2),
        *((name, _Norm) for name in ("embedding_norm", "final_norm", "head_norm")),
        ("layer", ctypes.POINTER(_Layer)),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("tokens", "lengths")),
        *((name, c_int64) for name in ("rows", "slots", "capacity")),
        *((name, c_void_p) for name in ("keys_values", "logits")),
        *((name, c_void_p) for name in ("qkv", "attended", "up", "inner", "out", "scratch")),
        ("scratch_size", c_int64),
    ]


class SelectedTokens(ctypes.Structure):
    """The tokens generated so far, in the buffers of `firth.inference.generation.sampling`."""

    _fields_ = [
        *((name, c_void_p) for name in ("tokens", "sums", "sizes", "ended", "position", "limits")),
        ("eos_token_ids", c_void_p),
        *((name, c_int64) for name in ("num_eos", "max_tokens", "vocab_size")),
    ]


def is_supported(network: Transformer, sequences: int, length: int) -> bool:
    """Tell whether `step.c` supports a model and is fast for this batch size and length."""
    if sequences > MAX_SEQUENCES or not is_plain_decoder(network, SUPPORTED_LAYERS):
        return False
    head, tokens = network.heads["language"], network.tokens.weight
    assert isinstance(head, LanguageHead)
    learned = network.stack.embedding.positions
    return (
        tokens.device.type == "cpu"
        and tokens.is_contiguous()
        and (learned is None or _has_positions(learned, length + network.config.position_offset))
        and _is_square(head.transform)
        and all(map(_is_supported_weight, network.parameters()))
    )


def _has_positions(learned: nn.Embedding, length: int) -> bool:
    return length <= learned.num_embeddings and learned.weight.is_contiguous()


def _is_square(transform: nn.Module | None) -> bool:
    numbers = getattr(transform, "numbers", getattr(transform, "weight", None))
    return numbers is None or numbers.shape[0] == numbers.shape[1]


def _is_supported_weight(weight: Tensor) -> bool:
    """Tell whether a weight is float32 and contiguous, as is or transposed."""
    return weight.dtype == torch.float32 and (
        weight.is_contiguous() or (weight.dim() == 2 and weight.t().is_contiguous())
    )


class CDecoder:
    """Decoding steps of a model for the sequences of a cache, or for the first ones of them."""

    def __init__(self, library: ctypes.CDLL, network: Transformer, cache: KVCache) -> None:
        read = [*network.parameters(), *network.buffers(), cache.keys_values]
        useful = sum(tensor.numel() for tensor in read) // NUMBERS_PER_THREAD
        self._library, self._threads = library, max(1, min(torch.get_num_threads(), useful))
        self._kept_alive: list[object] = []  # tensors that the structures point to
        self._network = self._network_struct(network)
        self._step = self._allocate(network.config, len(cache.lengths), cache.capacity)
        self.max_sequences = min(len(cache.lengths), MAX_SEQUENCES)

    def step(self, tokens: Tensor, cache: KVCache, logits: Tensor) -> None:
        """Process one token per sequence: extend the cache and compute the next-token logits."""
        self._library.firth_step(*self._arguments(tokens, cache, logits), self._threads)

    def generate(
        self,
        tokens: Tensor,
        cache: KVCache,
        logits: Tensor,
        selected: SelectedTokens,
        max_tokens: int,
    ) -> int:
        """Decode greedily for up to `max_tokens`; all but the last are in the cache afterwards.

        Returns the number of tokens; stops early when half of the sequences have ended.
        """
        pointers = *self._arguments(tokens, cache, logits), ctypes.byref(selected)
        return int(self._library.firth_generate(*pointers, max_tokens, self._threads))

    def _arguments(self, tokens: Tensor, cache: KVCache, logits: Tensor) -> tuple[Any, Any]:
        step = self._step
        step.rows = len(tokens)
        step.tokens, step.lengths = tokens.data_ptr(), cache.lengths.data_ptr()
        step.keys_values, step.logits = cache.keys_values.data_ptr(), logits.data_ptr()
        return ctypes.byref(self._network), ctypes.byref(step)

    def _allocate(self, config: TransformerConfig, slots: int, capacity: int) -> _Step:
        """Allocate the buffers of a step."""
        rows = min(slots, MAX_SEQUENCES)
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        scratch_size = rows * 2 * (config.hidden_size + config.head_dim) + capacity
        sizes = {"qkv": queries + 2 * keys, "attended": queries, "out": config.hidden_size}
        sizes |= {"inner": config.ffn_size, "up": config.ffn_size * (2 if config.gated else 1)}
        buffers = {name: self._address(torch.empty(rows * size)) for name, size in sizes.items()}
        scratch = self._address(torch.empty(self._threads * scratch_size))
        return _Step(
            slots=slots,
            capacity=capacity,
            **buffers,
            scratch=scratch,
            scratch_size=scratch_size,
        )

    # ---- the structures

    def _address(self, tensor: Tensor | None) -> int | None:
        """Return the address of a tensor and keep the tensor alive."""
        if tensor is None:
            return None
        self._kept_alive.append(tensor.detach())  # even if the model's weight is replaced
        return tensor.data_ptr()

    def _network_struct(self, network: Transformer) -> _Network:
        config, stack, head = network.config, network.stack, network.heads["language"]
        assert isinstance(head, LanguageHead)
        layers = (_Layer * stack.layers)()
        for i in range(stack.layers):
            layers[i] = self._layer(stack, i)
        self._kept_alive.append(layers)
        embedding, frequencies = stack.embedding, (c_void_p * 2)()
        rotary = [Rotary.of_layer(config, windowed) for windowed in (False, True)]
        if config.position_embedding == "rotary":
            for i, of_layer in enumerate(rotary):
                frequencies[i] = self._address(of_layer.frequencies(torch.device("cpu")))
        positions = None
        if embedding.positions is not None:
            positions = self._address(embedding.positions.weight[config.position_offset :])
        return _Network(
            layers=stack.layers,
            hidden_size=config.hidden_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            inner=config.ffn_size,
            gated=config.gated,
            activation=ACTIVATIONS[config.activation],
            head_activation=ACTIVATIONS[config.head_activation],
            window=config.window,
            scale=config.scale,
            embedding_scale=config.hidden_size**0.5 if config.embedding_scale else 1.0,
            head_scale=head.scale,
            embeddings=self._matrix(network.tokens),
            transform=_Matrix() if head.transform is None else self._matrix(head.transform),
            head=self._head(network, head),
            positions=positions,
            frequencies=frequencies,
            rope_factors=(c_double * 2)(*(of_layer.attention_factor for of_layer in rotary)),
            embedding_norm=self._norm(embedding.norm),
            final_norm=self._norm(stack.final_norm),
            head_norm=self._norm(head.norm),
            layer=layers,
        )

    def _layer(self, stack: Stack, index: int) -> _Layer:
        block: Any = stack.blocks[0 if stack.config.share_layers else index]
        attention, forward = block.attention, block.feed_forward
        return _Layer(
            attention_norms=self._residual(block.attention_norm),
            feed_forward_norms=self._residual(block.feed_forward_norm),
            query=self._norm(attention.query_norm),
            key=self._norm(attention.key_norm),
            qkv=self._matrix(attention.qkv),
            output=self._matrix(attention.output),
            up=self._matrix(forward.up),
            down=self._matrix(forward.down),
            local=index in stack.config.windowed_layers,
        )

    def _residual(self, residual: Residual) -> _Residual:
        return _Residual(*map(self._norm, (residual.before, residual.after, residual.outer)))

    def _norm(self, norm: Any) -> _Norm:
        if norm is None or isinstance(norm, nn.Identity):
            return _Norm()
        bias = self._address(getattr(norm, "bias", None))
        return _Norm(NORMS[type(norm)], norm.eps, self._address(norm.weight), bias)

    def _matrix(self, module: Any) -> _Matrix:
        bias = self._address(getattr(module, "bias", None))
        if isinstance(module, Int8Linear | Int8Embedding):
            numbers, scale = self._address(module.numbers), self._address(module.scale)
            return _Matrix(None, numbers, scale, bias, *module.numbers.shape)
        return self._weight(module.weight, bias)

    def _weight(self, weight: Tensor, bias: int | None) -> _Matrix:
        transposed = not weight.is_contiguous()  # GPT-2's checkpoints store (inputs, outputs)
        return _Matrix(self._address(weight), None, None, bias, *weight.shape, transposed)

    def _head(self, network: Transformer, head: LanguageHead) -> _Matrix:
        if head.output is not None:
            return self._matrix(head.output)
        return self._weight(head.matrix(network.tokens.weight), self._address(head.bias))


def make_c_decoder(
    network: Transformer, cache: KVCache, sequences: int | None = None
) -> CDecoder | None:
    """Build a C decoder; None if the model or the machine does not support it.

    `sequences`: how many of the cache's are decoded at most; default: all.
    """
    count = len(cache.lengths) if sequences is None else sequences
    if not is_supported(network, count, cache.capacity) or (library := load_library()) is None:
        return None
    return CDecoder(library, network, cache)
