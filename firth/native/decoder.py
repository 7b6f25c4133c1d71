"""A network described to `step.c`, which then takes the steps of writing.

The structures are those of the C file, field by field. They point at the network's own weights.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from firth.models.cache import Cache
from firth.models.config import ModelConfig
from firth.models.heads import LanguageHead
from firth.models.int8 import Int8Linear, Int8Table
from firth.models.layers import Attention, FeedForward, Fused, PlusOne, Residual
from firth.models.positions import rotary_frequencies
from firth.models.stack import Block, Embedding, Stack
from firth.models.transformer import Transformer
from firth.native.library import library

TEXTS = 8  # up to so many it is faster than torch's products of matrices
WORTH = 1 << 20  # weights for each thread: with fewer, waiting for each other takes longer
NORMS = {nn.Identity: 0, nn.LayerNorm: 1, nn.RMSNorm: 2, PlusOne: 3}
ACTIVATIONS = {"gelu": 0, "gelu-tanh": 1, "relu": 2, "silu": 3}
# A network of these alone is known here; an adapter, say, is not.
KNOWN = {
    *(Transformer, Stack, Embedding, Block, Attention, FeedForward, Residual, LanguageHead),
    *(Fused, Int8Linear, Int8Table, *NORMS),
    *(nn.Linear, nn.Embedding, nn.Dropout, nn.ModuleList, nn.ModuleDict),
}


class _Matrix(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("weight", "numbers", "scale", "bias")),
        *((name, c_int64) for name in ("outputs", "inputs", "upright")),
    ]


class _Norm(ctypes.Structure):
    _fields_ = [("kind", c_int64), ("eps", c_double), ("weight", c_void_p), ("bias", c_void_p)]


class _Residual(ctypes.Structure):
    _fields_ = [(name, _Norm) for name in ("before", "after", "outer")]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Residual) for name in ("around_attention", "around_forward")),
        *((name, _Norm) for name in ("query", "key")),
        *((name, _Matrix) for name in ("qkv", "output", "up", "down")),
        ("local", c_int64),
    ]


class _Network(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("layers", "width", "heads", "kv_heads", "head_width")),
        *((name, c_int64) for name in ("inner", "gated", "activation", "window")),
        ("head_activation", c_int64),
        *((name, c_double) for name in ("scale", "embedding_scale", "head_scale")),
        *((name, _Matrix) for name in ("table", "transform", "head")),
        ("positions", c_void_p),
        ("frequencies", c_void_p * 2),
        *((name, _Norm) for name in ("embedding", "final", "head_norm")),
        ("layer", ctypes.POINTER(_Layer)),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("tokens", "lengths")),
        *((name, c_int64) for name in ("rows", "places")),
        *((name, c_void_p) for name in ("kept", "scores")),
        *((name, c_void_p) for name in ("qkv", "seen", "up", "inner", "out", "own")),
        ("own_size", c_int64),
    ]


class Choice(ctypes.Structure):
    """What was chosen so far, where `firth.inference.choosing` keeps it."""

    _fields_ = [
        *((name, c_void_p) for name in ("tokens", "sums", "sizes", "ended", "place", "room")),
        *((name, c_int64) for name in ("most", "words", "end")),
    ]


def can_step(network: Transformer, texts: int, places: int) -> bool:
    """Whether `step.c` knows such a network, and is fast with so many texts of so many places."""
    config, head = network.config, dict(network.heads.items()).get("language")
    if texts > TEXTS or config.architecture != "decoder" or not isinstance(head, LanguageHead):
        return False
    embedding, table = network.stack.embedding, network.tokens.weight
    learned = embedding.positions
    return (
        table.device.type == "cpu"
        and table.is_contiguous()
        and not network.training
        and not torch.is_autocast_enabled("cpu")
        and config.positions != "sinusoidal"
        and (learned is None or _has_room(learned, places + config.position_offset))
        and embedding.segments is None
        and embedding.project is None
        and network.stack.relative is None
        and head.extension is None
        and _is_square(head.transform)
        and all(map(_is_plain, network.modules()))
        and all(map(_is_laid, network.parameters()))
        and not (_global_forward_hooks or _global_forward_pre_hooks)
    )


def _has_room(learned: nn.Embedding, places: int) -> bool:
    return places <= learned.num_embeddings and learned.weight.is_contiguous()


def _is_square(transform: nn.Module | None) -> bool:
    numbers = getattr(transform, "numbers", getattr(transform, "weight", None))
    return numbers is None or numbers.shape[0] == numbers.shape[1]


def _is_plain(module: nn.Module) -> bool:
    return type(module) in KNOWN and not (module._forward_hooks or module._forward_pre_hooks)


def _is_laid(weight: Tensor) -> bool:
    """In single precision, row behind row, or column behind column."""
    return weight.dtype == torch.float32 and (
        weight.is_contiguous() or (weight.dim() == 2 and weight.t().is_contiguous())
    )


class Native:
    """The steps of so many texts with a network."""

    def __init__(self, found: ctypes.CDLL, network: Transformer, cache: Cache) -> None:
        numbers = [*network.parameters(), *network.buffers()]
        worth = sum(tensor.numel() for tensor in numbers) // WORTH
        self._library, self._threads = found, max(1, min(torch.get_num_threads(), worth))
        self._alive: list[object] = []  # what the structures point at
        self._network = self._described(network)
        self._step = self._room(network.config, len(cache.lengths), cache.room)

    def step(self, tokens: Tensor, cache: Cache, scores: Tensor) -> None:
        """One token of each text: what is kept of it, and the scores of the next."""
        self._library.firth_step(*self._given(tokens, cache, scores), self._threads)

    def write(self, tokens: Tensor, cache: Cache, scores: Tensor, choice: Choice, most: int) -> int:
        """Choose the likeliest tokens, up to so many, and see all but the last.

        Gives how many there were: it stops early where half of the texts have ended.
        """
        given = *self._given(tokens, cache, scores), ctypes.byref(choice)
        return int(self._library.firth_write(*given, most, self._threads))

    def _given(self, tokens: Tensor, cache: Cache, scores: Tensor) -> tuple[Any, Any]:
        step = self._step
        step.tokens, step.lengths = tokens.data_ptr(), cache.lengths.data_ptr()
        step.kept, step.scores = cache.kept.data_ptr(), scores.data_ptr()
        return ctypes.byref(self._network), ctypes.byref(step)

    def _room(self, config: ModelConfig, rows: int, places: int) -> _Step:
        """A step, with room for what is made on the way."""
        seen, keys = config.heads * config.head_width, config.kv_heads * config.head_width
        own = rows * 2 * (config.width + config.head_width) + places
        sizes = {"qkv": seen + 2 * keys, "seen": seen, "out": config.width}
        sizes |= {"inner": config.inner, "up": config.inner * (2 if config.gated else 1)}
        room = {name: self._at(torch.empty(rows * size)) for name, size in sizes.items()}
        mine = self._at(torch.empty(self._threads * own))
        return _Step(rows=rows, places=places, **room, own=mine, own_size=own)

    # ---- the description

    def _at(self, tensor: Tensor | None) -> int | None:
        """Where numbers stand."""
        if tensor is None:
            return None
        self._alive.append(tensor.detach())  # also if the network is given other numbers
        return tensor.data_ptr()

    def _described(self, network: Transformer) -> _Network:
        config, stack, head = network.config, network.stack, network.heads["language"]
        assert isinstance(head, LanguageHead)
        layers = (_Layer * stack.layers)()
        for i in range(stack.layers):
            layers[i] = self._layer(stack, i)
        self._alive.append(layers)
        embedding, frequencies = stack.embedding, (c_void_p * 2)()
        if config.positions == "rotary":
            for i, theta in enumerate((config.theta, config.local_theta)):
                found = rotary_frequencies(config.head_width, theta, torch.device("cpu"))
                frequencies[i] = self._at(found)
        places = None
        if embedding.positions is not None:
            places = self._at(embedding.positions.weight[config.position_offset :])
        return _Network(
            layers=stack.layers,
            width=config.width,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_width=config.head_width,
            inner=config.inner,
            gated=config.gated,
            activation=ACTIVATIONS[config.activation],
            head_activation=ACTIVATIONS[config.head_activation],
            window=config.window,
            scale=config.scale,
            embedding_scale=config.width**0.5 if config.embedding_scale else 1.0,
            head_scale=head.scale,
            table=self._matrix(network.tokens),
            transform=_Matrix() if head.transform is None else self._matrix(head.transform),
            head=self._head(network, head),
            positions=places,
            frequencies=frequencies,
            embedding=self._norm(embedding.norm),
            final=self._norm(stack.final_norm),
            head_norm=self._norm(head.norm),
            layer=layers,
        )

    def _layer(self, stack: Stack, index: int) -> _Layer:
        block: Any = stack.blocks[0 if stack.config.shared else index]
        attention, forward = block.attention, block.feed_forward
        return _Layer(
            around_attention=self._residual(block.attention_norm),
            around_forward=self._residual(block.feed_forward_norm),
            query=self._norm(attention.query_norm),
            key=self._norm(attention.key_norm),
            qkv=self._matrix(attention.qkv),
            output=self._matrix(attention.output),
            up=self._matrix(forward.up),
            down=self._matrix(forward.down),
            local=index in stack.config.windowed,
        )

    def _residual(self, residual: Residual) -> _Residual:
        return _Residual(*map(self._norm, (residual.before, residual.after, residual.outer)))

    def _norm(self, norm: Any) -> _Norm:
        if norm is None or isinstance(norm, nn.Identity):
            return _Norm()
        bias = self._at(getattr(norm, "bias", None))
        return _Norm(NORMS[type(norm)], norm.eps, self._at(norm.weight), bias)

    def _matrix(self, module: Any) -> _Matrix:
        bias = self._at(getattr(module, "bias", None))
        if isinstance(module, Int8Linear | Int8Table):
            numbers, scale = self._at(module.numbers), self._at(module.scale)
            return _Matrix(None, numbers, scale, bias, *module.numbers.shape)
        return self._weight(module.weight, bias)

    def _weight(self, weight: Tensor, bias: int | None) -> _Matrix:
        upright = not weight.is_contiguous()  # GPT-2's, opened from a file of theirs
        return _Matrix(self._at(weight), None, None, bias, *weight.shape, upright)

    def _head(self, network: Transformer, head: LanguageHead) -> _Matrix:
        if head.output is not None:
            return self._matrix(head.output)
        return self._weight(head.matrix(network.tokens.weight), self._at(head.bias))


def native(network: Transformer, cache: Cache) -> Native | None:
    """What takes the steps of the texts of a cache; None where torch does it."""
    if not can_step(network, len(cache.lengths), cache.room) or (found := library()) is None:
        return None
    return Native(found, network, cache)
