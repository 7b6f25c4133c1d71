"""Interactive attention: an overview of all heads, and the matrix and the lines of one of them.

The weights are inside the page, as bytes in base64; `attention_weights.js` decodes a head when it
is drawn. Of long texts only the largest weights of each query are stored.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STYLE = Path(__file__).with_name("attention_view.css")
# In the order of use; the last one builds the figures of a page.
SCRIPTS = ("attention_weights.js", "attention_matrix.js", "attention_lines.js", "attention_view.js")
PAGE_BUDGET = 14_000_000  # bytes of all weights of a page, which stays below 20 MB


# H: heads, Q: queries, K: keys, k: stored keys of each query
@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """Attention weights as bytes: 255 is the row's largest weight, which `scales` holds."""

    num_keys: int
    scales: NDArray[np.uint16]  # (H, Q), the row's largest weight; 65535 is 1.0
    weights: NDArray[np.uint8]  # (H, Q, K) or, with `indices`, (H, Q, k)
    indices: NDArray[np.unsignedinteger[Any]] | None = None  # (H, Q, k), of the largest weights

    def dense(self) -> NDArray[np.float32]:
        """Return the weights (H, Q, K); those that are not stored are 0."""
        return self.pooled(self.scales.shape[1], self.num_keys)

    def pooled(self, height: int, width: int) -> NDArray[np.float32]:
        """Return pictures (H, height, width) of the heads; of several weights the largest."""
        num_heads, num_queries = self.scales.shape
        values = self.weights * (self.scales[..., None].astype(np.float32) / (65535 * 255))
        keys = np.arange(self.num_keys) if self.indices is None else self.indices.astype(np.int64)
        rows = np.arange(num_queries)[:, None] * height // num_queries
        pictures = np.zeros((num_heads, height, width), np.float32)
        places = (np.arange(num_heads)[:, None, None], rows, keys * width // self.num_keys)
        np.maximum.at(pictures, places, values)
        return pictures

    def head_bytes(self, place: int) -> bytes:
        """Return the indices (if any), scales and weights of one head, little endian."""
        chosen = () if self.indices is None else (self.indices[place],)
        arrays = (*chosen, self.scales[place], self.weights[place])
        return b"".join(one.astype(one.dtype.newbyteorder("<")).tobytes() for one in arrays)


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """The heads of one layer; layers and heads are counted from 1."""

    number: int
    heads: tuple[int, ...]
    weights: QuantizedWeights
    patterns: tuple[tuple[str, float] | None, ...] = ()  # of each head: a name and its statistic


@dataclass(frozen=True, eq=False)
class AttentionPart:
    """The attention of one stack, or of a decoder to its encoder, over one text."""

    name: str  # such as "encoder", "decoder", "cross"
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    layers: tuple[LayerAttention, ...]


@dataclass(frozen=True, eq=False)
class AttentionView:
    """An interactive figure of attention weights."""

    title: str
    parts: tuple[AttentionPart, ...]
    caption: str = ""


def quantize(weights: NDArray[np.floating[Any]], k: int | None = None) -> QuantizedWeights:
    """Quantize weights (H, Q, K) with an error of at most 1/510; with `k`, keep k keys of each row.

    >>> quantize(np.array([[[0.25, 0.75], [0.0, 1.0]]])).dense().round(2).tolist()
    [[[0.25, 0.75], [0.0, 1.0]]]
    """
    num_keys, indices = weights.shape[-1], None
    kept: Iterable[NDArray[np.floating[Any]]] = weights
    if k is not None and _row_bytes(num_keys, k) < _row_bytes(num_keys, None):
        indices = np.stack([_largest(head, k) for head in weights])
        kept = map(partial(np.take_along_axis, axis=-1), weights, indices.astype(np.int64))
    scales, bytes_ = zip(*map(_quantize_head, kept), strict=True)
    return QuantizedWeights(num_keys, np.stack(scales), np.stack(bytes_), indices)


def _quantize_head(
    weights: NDArray[np.floating[Any]],
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Return the largest weight of each row, and all weights relative to it."""
    largest = weights.max(axis=-1, initial=0.0)
    scales = np.ceil(np.clip(largest, 0.0, 1.0) * 65535).astype(np.uint16)
    steps = np.maximum(scales, 1)[..., None] / np.float32(65535 * 255)
    return scales, np.clip(np.rint(weights / steps), 0, 255).astype(np.uint8)


def _largest(weights: NDArray[np.floating[Any]], k: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return the k keys of each row with the largest weights, in the order of the text."""
    import torch  # five times as fast as numpy, and not needed to show other figures

    kept = torch.as_tensor(weights).topk(k, sorted=False).indices.numpy()
    return np.sort(kept, axis=-1).astype(_index_type(weights.shape[-1]))


def top_k_for(shapes: Iterable[tuple[int, int, int]], budget: int = PAGE_BUDGET) -> int | None:
    """Return how many keys of each query fit into `budget` bytes of a page; None: all of them.

    `shapes` are the heads, queries and keys of every layer on the page.

    >>> top_k_for([(12, 30, 30)] * 12) is None
    True
    >>> top_k_for([(12, 2000, 2000)] * 12)
    11
    """
    shapes = list(shapes)
    if page_bytes(shapes, None) <= budget:
        return None
    longest = max(keys for _, _, keys in shapes)
    return next((k for k in range(longest, 1, -1) if page_bytes(shapes, k) <= budget), 1)


def page_bytes(shapes: Sequence[tuple[int, int, int]], k: int | None) -> int:
    """Count the bytes that the weights of layers need on a page, with k keys of each query."""
    rows = (heads * queries * _row_bytes(keys, k) for heads, queries, keys in shapes)
    return sum(rows) * 4 // 3  # base64


def _row_bytes(keys: int, k: int | None) -> int:
    """Count the bytes of a row: its scale and its weights, and their indices if that is less."""
    chosen = keys if k is None else k * (1 + _index_type(keys).itemsize)
    return 2 + min(keys, chosen)


def _index_type(keys: int) -> np.dtype[np.unsignedinteger[Any]]:
    return np.dtype(np.uint16 if keys <= 65536 else np.uint32)


def attention_html(view: AttentionView) -> str:
    """Render the data of a view, and a sentence for browsers without scripts."""
    parts = json.dumps(part_values(view.parts)).replace("<", "\\u003c")
    return (
        '<div class="attention-view"><p>This figure needs JavaScript.</p></div>'
        f'<script type="application/json">{parts}</script>'
    )


def style_and_script() -> tuple[str, str]:
    """Return the style and the script of all attention views of a page."""
    return STYLE.read_text(encoding="utf-8"), f'(() => {{ "use strict";\n{_script()}}})();\n'


def script_module() -> str:
    """Return the script as an ES module that exports `AttentionFigure`, for views made later."""
    return f"{_script()}\nexport {{ AttentionFigure }};\n"


def _script() -> str:
    return "\n".join(STYLE.with_name(name).read_text(encoding="utf-8") for name in SCRIPTS)


def part_values(parts: Iterable[AttentionPart]) -> list[dict[str, object]]:
    """Return the JSON values that the script needs of each part."""
    return [_part(part) for part in parts]


def _part(part: AttentionPart) -> dict[str, object]:
    layers = [_layer(layer) for layer in part.layers]
    return {"name": part.name, "queries": part.queries, "keys": part.keys, "layers": layers}


def _layer(layer: LayerAttention) -> dict[str, object]:
    weights = layer.weights
    heads = [
        {
            "number": number,
            "pattern": pattern,
            "data": b64encode(weights.head_bytes(place)).decode(),
        }
        for place, (number, pattern) in enumerate(
            zip(layer.heads, layer.patterns or (None,) * len(layer.heads), strict=True)
        )
    ]
    stored = 0 if weights.indices is None else weights.indices.shape[-1]
    width = 0 if weights.indices is None else weights.indices.itemsize
    return {"number": layer.number, "top_k": stored, "index_bytes": width, "heads": heads}
