"""Attention views: quantized weights, the size of a page, and what the browser shows."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.image import imread
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
from firth.utils.figure_images import write_image
from firth.utils.figures import Paragraph, Tabs
from firth.utils.html_page import Page, Section, render_page

if TYPE_CHECKING:
    from playwright.sync_api import Page as BrowserPage

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


@pytest.mark.parametrize("k", [None, 8])
def test_heads_are_quantized_one_at_a_time(k: int | None) -> None:
    weights = attention(16, 100, 200)
    tracemalloc.start()
    quantize(weights, k)
    assert tracemalloc.get_traced_memory()[1] < weights.nbytes
    tracemalloc.stop()


@pytest.mark.parametrize("k", [None, 8])
def test_the_largest_weight_of_a_pixel_is_seen(k: int | None) -> None:
    weights = quantize(attention(2, 60, 40), k)
    blocks = weights.dense().reshape(2, 6, 10, 4, 10).max(axis=(2, 4))
    assert np.array_equal(weights.pooled(6, 4), blocks)


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


def test_the_image_has_a_row_for_each_layer(tmp_path: Path) -> None:
    view = small_view()
    sizes = []
    for parts in (view.parts, view.parts[:1]):
        write_image(replace(view, parts=parts), tmp_path / "image.png")
        sizes.append(imread(tmp_path / "image.png").shape)
    assert sizes[0][0] > sizes[1][0]


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


@pytest.fixture
def page(tmp_path: Path, open_page: Callable[..., BrowserPage]) -> BrowserPage:
    """Open the small view in a browser."""
    path = tmp_path / "page.html"
    path.write_text(render(small_view(("[CLS]", "dog", EVIL, "dog"))), encoding="utf-8")
    return open_page(path)


def picture(page: BrowserPage, selector: str) -> str:
    """Return the pixels of a canvas."""
    return page.eval_on_selector(selector, "canvas => canvas.toDataURL()")


def status(page: BrowserPage) -> str:
    return page.inner_text("[role=status]")


def test_a_click_on_a_head_shows_its_lines(page: BrowserPage) -> None:
    before = picture(page, ".av-lines canvas")
    page.click("[aria-label='Layer 2, head 2']")
    assert status(page) == "Layer 2, head 2 (encoder)"
    assert picture(page, ".av-lines canvas") != before
    assert page.get_attribute("[aria-label='Layer 2, head 2']", "aria-selected") == "true"
    assert page.input_value("label:has-text('Head') select") == "2"


def test_layers_and_parts_are_switched(page: BrowserPage) -> None:
    page.select_option("label:has-text('Layer') select", "2")
    assert status(page) == "Layer 2, head 1 (encoder): previous token 0.83"
    page.click("text=cross")
    assert page.locator(".av-tokens [role=option]").all_inner_texts() == ["x", "y"]
    page.select_option("label:has-text('Head') select", "3")
    assert status(page) == "Layer 1, head 3 (cross)"


def test_the_keys_of_a_token_have_their_percentages(page: BrowserPage) -> None:
    weights = quantize(attention(2, 4, 4)).dense()[0, 1]
    page.hover("[role=option] >> nth=1")
    shown = page.locator(".av-keys b").all_inner_texts()
    assert [float(text.rstrip("%") or 0) for text in shown] == pytest.approx(100 * weights, abs=0.6)
    assert status(page).startswith("dog (2) → ")
    page.click("[role=option] >> nth=1")
    page.mouse.move(0, 0)
    assert page.locator(".av-keys b").all_inner_texts() == shown  # pinned
    page.click("[role=option] >> nth=1")
    page.mouse.move(0, 0)
    assert not "".join(page.locator(".av-keys b").all_inner_texts())


def test_a_cell_of_the_matrix_is_explained(page: BrowserPage) -> None:
    page.click("text=Matrix")
    assert page.is_hidden(".av-lines")
    box = page.locator(".av-matrix canvas").bounding_box()
    assert box is not None
    last_cell = {"x": box["width"] - 9, "y": box["height"] - 9}
    page.hover(".av-matrix canvas", position=last_cell)  # type: ignore[arg-type]
    percentage = 100 * quantize(attention(2, 4, 4)).dense()[0, 3, 3]
    found = re.fullmatch(r"dog \(4\) → dog \(4\): ([\d.]+)%", status(page))
    assert found
    assert float(found[1]) == pytest.approx(percentage, abs=0.6)
    assert page.inner_text(".av-tip") == status(page)


def test_a_pattern_is_emphasized(page: BrowserPage) -> None:
    page.click("text=previous token (2)")
    page.mouse.move(0, 0)
    assert page.locator(".av-overview .faint").count() == 2  # of four heads
    page.click("text=previous token (2)")
    assert page.locator(".av-overview .faint").count() == 0


def test_a_view_in_a_tab_is_drawn_when_it_is_shown(
    tmp_path: Path, open_page: Callable[..., BrowserPage]
) -> None:
    tabs = Tabs("", ("one", "two"), ((Paragraph("first"),), (small_view(),)))
    text = render_page(Page("", "", [Section("", "", [tabs])]))
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = open_page(tmp_path / "page.html")
    page.click("text=two")
    page.click("[aria-label='Layer 2, head 2']")
    assert page.locator(".av-lines canvas").is_visible()
    assert int(page.eval_on_selector(".av-lines canvas", "canvas => canvas.width")) > 300


def test_the_keyboard_is_enough(page: BrowserPage) -> None:
    page.focus("[aria-selected=true]")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert status(page) == "Layer 2, head 2 (encoder)"
    assert page.locator("[role=gridcell][tabindex='0']").count() == 1
    page.focus("[role=option] >> nth=0")
    page.keyboard.press("ArrowDown")
    assert status(page).startswith("dog (2) → ")
    page.keyboard.press("Enter")
    assert page.get_attribute("[role=option] >> nth=1", "aria-selected") == "true"
    page.click("text=Matrix")
    page.focus(".av-matrix")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert status(page).startswith("[CLS] → dog (2): ")


def test_all_heads_of_a_layer_are_drawn_together(page: BrowserPage) -> None:
    one = picture(page, ".av-lines canvas")
    page.check("text=all heads of the layer")
    both = picture(page, ".av-lines canvas")
    page.click("[aria-label='Head 2']")
    assert len({one, both, picture(page, ".av-lines canvas")}) == 3


def test_long_texts_are_scrolled_on_a_telephone(
    tmp_path: Path, open_page: Callable[..., BrowserPage]
) -> None:
    tokens = tuple(f"token{i}" for i in range(200))
    weights = quantize(attention(2, 200, 200), 5)
    part = AttentionPart("decoder", tokens, tokens, (LayerAttention(1, (1, 2), weights),))
    (tmp_path / "page.html").write_text(render(AttentionView("", (part,))), encoding="utf-8")
    page = open_page(tmp_path / "page.html", width=390, dark=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("[role=option] >> nth=150").click()
    row = weights.dense()[0, 150]
    best = int(row.argmax())
    page.click(f".av-legend >> text=token{best} ")
    assert page.locator(".av-keys div").nth(best).is_visible()
    page.tap("text=Matrix")
    page.tap(".av-matrix canvas", position={"x": 200, "y": 200})
    assert "→" in page.inner_text(".av-tip")
    width = page.evaluate("document.querySelector('.av-space').clientWidth")
    page.click("[aria-label='Zoom in']")
    assert page.evaluate("document.querySelector('.av-space').clientWidth") > width
    assert page.evaluate("document.documentElement.scrollWidth") == 390
