"""Attention views: quantized weights, the size of a page, and what the browser shows."""

from __future__ import annotations

import json
import re
from io import StringIO

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from firth.cli.views.figures import figures
from firth.utils.attention_view import (
    AttentionPart,
    AttentionView,
    LayerAttention,
    quantize,
    top_k_for,
)
from firth.utils.html_page import Page, Section, render_page

EVIL = "</script><script>alert(1)</script><!--"


def attention(heads: int, queries: int, keys: int, seed: int = 0) -> NDArray[np.float32]:
    """Random attention weights, some of them sharp; rows sum to 1."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1 + 4 * rng.random((heads, 1, 1)), (heads, queries, keys))
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def test_dense_weights_are_rounded_by_at_most_one_of_510() -> None:
    weights = attention(4, 40, 60)
    assert np.abs(quantize(weights).dense() - weights).max() <= 1 / 510
    uniform = np.full((1, 3, 2000), 1 / 2000)
    assert quantize(uniform).dense() == pytest.approx(uniform, rel=0.05)


def test_the_largest_weights_of_each_row_are_kept() -> None:
    weights = attention(3, 50, 300)
    all_of_them, kept = quantize(weights).dense(), quantize(weights, 8).dense()
    expected = np.sort(weights, axis=-1)[..., -8:]
    assert np.abs(np.sort(kept, axis=-1)[..., -8:] - expected).max() <= 1 / 510
    assert ((kept == 0) | (kept == all_of_them)).all()
    assert (np.count_nonzero(kept, axis=-1) <= 8).all()


def test_rows_that_are_no_shorter_with_indices_are_dense() -> None:
    assert quantize(attention(1, 4, 24), 8).indices is None
    assert quantize(attention(1, 4, 25), 8).indices is not None


def small_view(tokens: tuple[str, ...] = ("a", "b", "c")) -> AttentionView:
    """Two parts; the heads of the first are labelled."""
    weights = quantize(attention(2, len(tokens), len(tokens)))
    patterns = (("previous token", 0.83), None)
    encoder = tuple(LayerAttention(i, (1, 2), weights, patterns) for i in (1, 2))
    parts = AttentionPart("encoder", tokens, tokens, encoder)
    cross = (LayerAttention(1, (1, 3), quantize(attention(2, 2, len(tokens), 1))),)
    return AttentionView("Attention", (parts, AttentionPart("cross", ("x", "y"), tokens, cross)))


def test_the_terminal_lists_heads_with_a_pattern() -> None:
    shown = Console(width=80, file=StringIO())
    shown.print(*figures([small_view()]))
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"previous token +2-1 \(0.83\), 1-1 \(0.83\)", text)
    assert "cross" in text


def render(*views: AttentionView) -> str:
    return render_page(Page("Attention", "", [Section("Text", "", views)]))


def test_tokens_are_escaped_and_the_script_is_on_the_page_once() -> None:
    text = render(small_view((EVIL, "b")), small_view())
    assert EVIL not in text
    assert len(re.findall("<script>", text)) == 1
    data = re.findall(r'<script type="application/json">(.*?)</script>', text)
    assert json.loads(data[0])[0]["queries"] == [EVIL, "b"]
    assert len(data) == 2


def test_pages_of_long_texts_stay_below_20_mb() -> None:
    """Of 2,000 tokens and 144 heads, also for the three parts of an encoder-decoder."""
    stack = [(12, 2000, 2000)] * 12
    layer_bytes = {}
    for parts in (1, 3):
        k = top_k_for(stack * parts)
        assert k
        layer = quantize(np.full((1, 2000, 2000), 1 / 2000, np.float32), k)
        layer_bytes[parts] = len(layer.head_bytes(0))
        assert 144 * parts * layer_bytes[parts] * 4 / 3 < 15_000_000
    part = AttentionPart("encoder", ("t",) * 2000, ("t",) * 2000, (LayerAttention(1, (1,), layer),))
    overhead = len(render(AttentionView("", (part,)))) - layer_bytes[3] * 4 / 3
    assert overhead < 100_000
