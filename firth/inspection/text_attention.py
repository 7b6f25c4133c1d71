"""The attention of every layer and head over one text, with the patterns that heads follow.

The weights of one layer are in memory at a time; they are kept as bytes (`QuantizedWeights`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from firth.inference.attention_maps import (
    Numbers,
    attention_maps,
    network_parts,
    resolve_numbers,
    virtual_tokens,
)
from firth.inspection.head_patterns import (
    PATTERNS,
    PatternStatistic,
    TokenRoles,
    head_statistics,
    label_heads,
)
from firth.model import Model
from firth.tokenizers.display import display_tokens
from firth.utils.attention_view import (
    AttentionPart,
    AttentionView,
    LayerAttention,
    quantize,
    top_k_for,
)
from firth.utils.figures import DataTable, Figure

MAX_JSON_WEIGHTS = 1_000_000  # of a text; `Model.attention` returns all of them
CAPTION = (
    "Each row of a matrix is a token and adds up to 1: how much of its attention goes to the token "
    "of each column. Layers and heads are counted from 1."
)
CUT = " Only the {k} largest weights of each row are stored."


@dataclass(frozen=True, kw_only=True, eq=False)
class TextAttention:
    """The attention weights of a text, and the statistics of each layer's heads."""

    parts: tuple[AttentionPart, ...]
    statistics: dict[tuple[str, int], dict[str, PatternStatistic]]  # by part and layer
    stored: int | None  # largest weights of each row that are stored; None: all

    def values(self) -> dict[str, Any]:
        """Return JSON values: patterns and statistics of each head, and weights of short texts."""
        sizes = [
            len(layer.heads) * len(part.queries) * len(part.keys)
            for part in self.parts
            for layer in part.layers
        ]
        with_weights = self.stored is None and sum(sizes) <= MAX_JSON_WEIGHTS
        return {"parts": [self._part_values(part, with_weights) for part in self.parts]}

    def _part_values(self, part: AttentionPart, with_weights: bool) -> dict[str, Any]:
        layers = []
        for layer in part.layers:
            statistics = self.statistics[part.name, layer.number]
            weights = layer.weights.dense().round(4).tolist() if with_weights else None
            heads = [
                {
                    "head": number,
                    "pattern": pattern and pattern[0],
                    "statistics": {
                        name: round(one.values[i], 4) for name, one in statistics.items()
                    },
                    "weights": None if weights is None else weights[i],
                }
                for i, (number, pattern) in enumerate(zip(layer.heads, layer.patterns, strict=True))
            ]
            layers.append({"layer": layer.number, "heads": heads})
        tokens = {"queries": list(part.queries), "keys": list(part.keys)}
        return {"part": part.name, **tokens, "layers": layers}

    def figures(self) -> tuple[Figure, ...]:
        """Return the interactive view, and what the patterns of its heads mean."""
        caption = CAPTION + ("" if self.stored is None else CUT.format(k=self.stored))
        layers = [layer for part in self.parts for layer in part.layers]
        found = {pattern[0] for layer in layers for pattern in layer.patterns if pattern}
        rows = tuple((name, PATTERNS[name]) for name in PATTERNS if name in found)
        view = AttentionView("", self.parts, caption)
        table = DataTable("Patterns of heads", ("pattern", "number: mean attention to"), rows, True)
        return (view, table) if rows else (view,)


def text_attention(
    model: Model,
    ids: Sequence[int],
    target_ids: Sequence[int] = (),
    *,
    segments: Sequence[int] | None = None,
    layers: Numbers = None,
    heads: Numbers = None,
) -> TextAttention:
    """Compute the attention of a model over token ids, layer by layer.

    `target_ids` are those of the decoder in an encoder-decoder, `segments` the segment of each
    token of a pair. Layers and heads are counted from 1, or from the end with negative numbers; by
    default all.
    """
    network, stacks = model.transformer, network_parts(model.transformer)
    numbers = resolve_numbers(layers, {p: s.layers for p, s in stacks.items()}, "layer")
    num_heads = {part: stack.config.num_heads for part, stack in stacks.items()}
    head_numbers = resolve_numbers(heads, num_heads, "head")
    parts, roles = _tokens_of_parts(model, ids, target_ids)
    stored = top_k_for(
        (len(head_numbers[part]), len(one.queries), len(one.keys))
        for part, one in parts.items()
        for _ in numbers[part]
    )
    found: dict[str, list[LayerAttention]] = {part: [] for part in parts}
    statistics = {}
    for one in attention_maps(
        network, ids, target_ids, segments=segments, layers=layers, heads=heads
    ):
        own = head_statistics(one.weights, *roles[one.part])
        patterns = tuple(label_heads(own)) or (None,) * len(one.weights)
        weights = quantize(one.weights.cpu().numpy(), stored)
        layer = LayerAttention(one.layer, tuple(head_numbers[one.part]), weights, patterns)
        found[one.part].append(layer)
        statistics[one.part, one.layer] = own
    shown = (replace(one, layers=tuple(found[part])) for part, one in parts.items() if found[part])
    return TextAttention(parts=tuple(shown), statistics=statistics, stored=stored)


def _tokens_of_parts(
    model: Model, ids: Sequence[int], target_ids: Sequence[int]
) -> tuple[dict[str, AttentionPart], dict[str, tuple[TokenRoles, ...]]]:
    """Return each part with its tokens but without layers, and the roles of queries and keys."""
    network, parts, roles = model.transformer, {}, {}
    source = model.input_tokenizer(), ids
    target = model.require_tokenizer(), target_ids
    for i, part in enumerate(network_parts(network)):
        queries, keys = source if i == 0 else target, target if part == "decoder" and i else source
        names = (*virtual_tokens(network, part), *display_tokens(*keys))
        parts[part] = AttentionPart(part, tuple(display_tokens(*queries)), names, ())
        chosen = (queries, keys) if part == "cross" else (queries,)
        roles[part] = tuple(TokenRoles.of(*one) for one in chosen)
    return parts, roles
