"""The attention of every layer and head over one text, with the patterns that heads follow.

The weights of one layer are in memory at a time; they are kept as bytes (`QuantizedWeights`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from firth.inspection.input_text import ModelInput
from firth.model import Model
from firth.tokenizers.display import display_tokens
from firth.utils.attention_view import (
    PAGE_BUDGET,
    AttentionPart,
    AttentionView,
    LayerAttention,
    page_bytes,
    quantize,
    top_k_for,
)
from firth.utils.figures import DataTable, Figure

MAX_TOKENS = 4096  # of a text: one head has MAX_TOKENS² weights
MAX_JSON_WEIGHTS = 1_000_000  # of a text; `Model.attention` returns all of them
NUMBERS = {"uniform": "entropy / entropy of uniform attention"}
CAPTION = (
    "Each row of a matrix is a token and adds up to 1: how much of its attention goes to the token "
    "of each column. Layers and heads are counted from 1."
)
FEWER_TOKENS = " Only the first {tokens:,} tokens are read."
FEWER_LAYERS = " Only {some} of {all} layers are stored (to choose: --layers)."
FEWER_WEIGHTS = " Only the {k} largest weights of each row are stored."


@dataclass(frozen=True, kw_only=True, eq=False)
class TextAttention:
    """The attention weights of a text, and the statistics of each layer's heads."""

    parts: tuple[AttentionPart, ...]
    statistics: dict[tuple[str, int], dict[str, PatternStatistic]]  # by part and layer
    stored: int | None  # largest weights of each row that are stored; None: all
    limits: str = ""  # sentences: what is left out

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
        layers = [layer for part in self.parts for layer in part.layers]
        found = {pattern[0] for layer in layers for pattern in layer.patterns if pattern}
        rows = tuple(
            (name, meaning, NUMBERS.get(name, "mean attention weight on them"))
            for name, meaning in PATTERNS.items()
            if name in found
        )
        view = AttentionView("", self.parts, CAPTION + self.limits)
        table = DataTable("Patterns of heads", ("pattern", "attends to", "number"), rows, True)
        return (view, table) if rows else (view,)


def text_attention(
    model: Model,
    read: ModelInput,
    *,
    layers: Numbers = None,
    heads: Numbers = None,
    texts_on_page: int = 1,
) -> TextAttention:
    """Compute the attention of a model over the tokens that it reads, layer by layer.

    Layers and heads are counted from 1, or from the end with negative numbers; by default all. Of
    more than `MAX_TOKENS` tokens the first are read. What is stored is limited by the size of a
    page with `texts_on_page` texts: some layers, and the largest weights of each row.
    """
    too_long = max(len(read.ids), len(read.target_ids)) > MAX_TOKENS
    read = read.first(MAX_TOKENS)
    network = model.transformer
    stacks = network_parts(network, encodes_only=not read.target_ids)
    counts = {part: stack.layers for part, stack in stacks.items()}
    num_heads = {part: stack.config.num_heads for part, stack in stacks.items()}
    head_numbers = resolve_numbers(heads, num_heads, "head")
    parts, roles = _tokens_of_parts(model, read, list(stacks))
    shapes = {
        part: (len(head_numbers[part]), len(one.queries), len(one.keys))
        for part, one in parts.items()
    }
    layers = range(1, max(counts.values()) + 1) if layers is None else layers
    kept, stored = _fit_page(layers, counts, shapes, PAGE_BUDGET // texts_on_page)
    found: dict[str, list[LayerAttention]] = {part: [] for part in parts}
    statistics = {}
    for one in attention_maps(
        network,
        read.ids,
        read.target_ids,
        layers=kept,
        heads=heads,
        prefix=read.prefix,
        segments=read.segments,
    ):
        values = one.weights.cpu()
        own = head_statistics(values, *roles[one.part])
        patterns = tuple(label_heads(own)) or (None,) * len(values)
        weights = quantize(values.numpy(), stored)
        layer = LayerAttention(one.layer, tuple(head_numbers[one.part]), weights, patterns)
        found[one.part].append(layer)
        statistics[one.part, one.layer] = own
        del one, values  # the weights of the next layer are computed now
    shown = (replace(one, layers=tuple(found[part])) for part, one in parts.items() if found[part])
    limits = (
        FEWER_TOKENS.format(tokens=MAX_TOKENS) if too_long else "",
        FEWER_LAYERS.format(some=len(kept), all=len(layers)) if len(kept) < len(layers) else "",
        "" if stored is None else FEWER_WEIGHTS.format(k=stored),
    )
    return TextAttention(
        parts=tuple(shown), statistics=statistics, stored=stored, limits="".join(limits)
    )


def _fit_page(
    layers: Sequence[int],
    counts: Mapping[str, int],
    shapes: Mapping[str, tuple[int, int, int]],
    budget: int,
) -> tuple[Sequence[int], int | None]:
    """Choose layers, and how many weights of each row, that fit into `budget` bytes of a page.

    `shapes` are the heads, queries and keys of a layer of each part. Where one weight of each row
    is too much for all layers, every second is kept, or every third, and so on, with the last one.

    >>> _fit_page(range(1, 33), {"decoder": 32}, {"decoder": (32, 4000, 4000)}, 7_000_000)
    ([4, 8, 12, 16, 20, 24, 28, 32], 1)
    """
    for step in range(1, (len(layers) or 1) + 1):
        kept = list(layers)[::-step][::-1]
        numbers = resolve_numbers(kept, counts, "layer")
        sizes = [shape for part, shape in shapes.items() for _ in numbers[part]]
        if page_bytes(sizes, 1) <= budget:
            break
    return kept, top_k_for(sizes, budget)


def _tokens_of_parts(
    model: Model, read: ModelInput, names: Sequence[str]
) -> tuple[dict[str, AttentionPart], dict[str, tuple[TokenRoles, ...]]]:
    """Return each part with its tokens but without layers, and the roles of queries and keys."""
    network, parts, roles = model.transformer, {}, {}
    source = model.input_tokenizer(), read.ids
    target = model.require_tokenizer(), read.target_ids
    for i, part in enumerate(names):
        queries, keys = source if i == 0 else target, target if part == "decoder" and i else source
        shown = (*virtual_tokens(network, part), *display_tokens(*keys))
        parts[part] = AttentionPart(part, tuple(display_tokens(*queries)), shown, ())
        chosen = (queries, keys) if part == "cross" else (queries,)
        roles[part] = tuple(TokenRoles.of(*one) for one in chosen)
    return parts, roles
