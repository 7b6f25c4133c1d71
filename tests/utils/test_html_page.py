"""Figures on a page: structure, escaping, and no network request."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from firth.utils.attention_view import AttentionView
from firth.utils.figures import (
    AttentionMask,
    Bar,
    BarChart,
    DataTable,
    Figure,
    Heatmap,
    KeyNumber,
    KeyNumbers,
    LineChart,
    MarkedText,
    Paragraph,
    Piece,
    Point,
    ScatterPlot,
    ScatterPoint,
    Tabs,
    WeightedPiece,
    WeightedText,
)
from firth.utils.html_page import RENDERERS, Page, Section, render_figures, render_page, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Page as BrowserPage

EVIL = '<script>alert("x")</script>'
FIGURES: list[Figure] = [
    KeyNumbers((KeyNumber(EVIL, EVIL),)),
    Paragraph(EVIL),
    DataTable(EVIL, (EVIL,), ((EVIL,),)),
    DataTable(EVIL, (EVIL,), ((EVIL,),), marked=frozenset({(0, 0)}), folded=True),
    MarkedText(EVIL, (Piece(EVIL, EVIL, EVIL),), EVIL),
    BarChart(EVIL, (Bar(EVIL, 0.5, 0.25, 0.75),), caption=EVIL),
    LineChart(EVIL, EVIL, EVIL, {EVIL: (Point(1, 2), Point(2, 3))}, caption=EVIL),
    AttentionMask(EVIL, (EVIL,), ((True,),), EVIL),
    Heatmap(
        EVIL, (EVIL,), (EVIL,), ((0.5,),), ((EVIL,),), ((EVIL,),),
        row_title=EVIL, column_title=EVIL, caption=EVIL,
    ),
    ScatterPlot(EVIL, (ScatterPoint(0, 0, EVIL, EVIL), ScatterPoint(1, 1, "b", EVIL)), EVIL),
    WeightedText(EVIL, (WeightedPiece(EVIL, 0.5),), EVIL),
    Tabs(EVIL, (EVIL,), ((Paragraph(EVIL),),)),
]  # fmt: skip


def test_nothing_is_requested_and_everything_is_escaped() -> None:
    text = render_page(Page(EVIL, EVIL, [Section(EVIL, EVIL, FIGURES, [EVIL])], EVIL, [1]))
    assert EVIL not in text
    assert text.count("<script>") == 1  # the page's own
    assert not re.search(r"\b(?:src|href)=(?!\"#)|@import|url\(", text)
    policy = re.search('<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert policy is not None
    assert set(policy[1].split("; ")) >= {"default-src 'none'", "script-src 'unsafe-inline'"}


def test_every_kind_of_figure_is_tested() -> None:
    elsewhere = {AttentionView}  # test_attention_view.py
    assert set(map(type, FIGURES)) | elsewhere == set(RENDERERS)


def test_cells_have_their_colours() -> None:
    values = ((-1.0, 0.25), (math.nan, 2.0))
    text = render_figures([Heatmap("", ("a", "b"), ("c", "d"), values, low=-2, high=2)])
    cells = re.findall(r'<td class="(heat[^"]*)" style="--v:([\d.]+)" title="([^"]*)"', text)
    assert cells == [
        ("heat negative", "0.5", "a, c\n-1"),
        ("heat", "0.125", "a, d\n0.25"),
        ("heat dark", "1", "b, d\n2"),
    ]


def test_weights_are_relative_to_the_largest() -> None:
    pieces = (WeightedPiece("a", -0.2), WeightedPiece("b", 0.05), WeightedPiece("c", 0.0))
    text = render_figures([WeightedText("", pieces)])
    pattern = r'<span class="([^"]*)" style="--v:([\d.]+)" title="([^"]*)"'
    assert re.findall(pattern, text) == [
        ("heat negative dark", "1", "-0.2"),
        ("heat", "0.25", "+0.05"),
        ("heat", "0", "+0"),
    ]


def test_groups_of_points_differ_in_colour_and_shape() -> None:
    points = tuple(ScatterPoint(n, 2 * n, f"group {n}", "") for n in range(20))
    text = render_figures([ScatterPlot("", points)])
    marks = re.findall(r'<path class="point (c\d)" data-group="(\d+)"[^>]* d="([^"]*)"', text)
    assert len({(colour, shape) for colour, _, shape in marks}) == 20
    assert len({colour for colour, _, _ in marks}) == 8


def test_many_lines_differ_in_colour_and_dashes() -> None:
    lines = {f"run {n}": (Point(0, n), Point(1, n + 1)) for n in range(30)}
    text = render_figures([LineChart("", "step", "loss", lines)])
    drawn = re.findall(r'<polyline class="line (c[0-7]) (dash\d)" data-group="\d+"', text)
    assert len(drawn) == len(set(drawn)) == 30


def test_cells_are_marked_and_tables_folded() -> None:
    rows = (("seed", "1", "2"), ("steps", "5", "5"))
    text = render_figures([DataTable("Same", ("", "a", "b"), rows, marked=frozenset({(0, 2)}))])
    assert re.findall("<mark>(.*?)</mark>", text) == ["2"]
    assert "<details>" not in text
    assert "<details>" in render_figures([DataTable("Same", ("", "a"), (), folded=True)])


def test_both_axes_have_one_scale() -> None:
    corners = ((0, 0), (2, 0), (0, 1))
    points = tuple(ScatterPoint(x, y, "", "a") for x, y in corners)
    text = render_figures([ScatterPlot("", points)])
    places = [
        tuple(map(float, pair)) for pair in re.findall(r"translate\(([\d.]+) ([\d.]+)\)", text)
    ]
    (x0, y0), (x1, y1), (x2, y2) = places
    assert (y0, x0) == (y1, x2)
    assert math.isclose((x1 - x0) / 2, y0 - y2, abs_tol=0.1)


def test_a_single_point_is_in_the_middle() -> None:
    text = render_figures([ScatterPlot("", (ScatterPoint(7, -3, "", "a"),))])
    height = int(re.findall(r'viewBox="0 0 560 (\d+)"', text)[0])
    assert f"translate({560 / 2:.1f} {height / 2:.1f})" in text
    column = tuple(ScatterPoint(7, y, "", "a") for y in (0.0, 0.001))
    text = render_figures([ScatterPlot("", column)])
    first, second = re.findall(r"translate\(280.0 ([\d.]+)\)", text)
    assert float(first) - float(second) > 100


def test_a_plot_without_points_says_so() -> None:
    assert "no points" in render_figures([ScatterPlot("PCA", ())])


WIDE = Heatmap(
    "Logit lens",
    tuple(f"layer {i}" for i in range(3)),
    tuple(f"token {i}" for i in range(60)),
    tuple(tuple((i + j) / 223 for j in range(60)) for i in range(3)),
    tuple(tuple(f"word {j}" for j in range(60)) for i in range(3)),
)
POINTS = ScatterPlot(
    "PCA", tuple(ScatterPoint(i % 7, i % 5, f"group {i % 3}", f"text {i}") for i in range(35))
)
LAYERS = tuple(f"layer {i}" for i in range(1, 26))
SHOWN: list[Figure] = [
    WIDE,
    POINTS,
    LineChart("Loss", "step", "loss", {n: (Point(0, 1), Point(1, 0.5)) for n in "xyz"}),
    WeightedText("Weights", (WeightedPiece("good", 0.25), WeightedPiece(" film", -0.125))),
    Tabs("Few", LAYERS[:3], tuple((Paragraph(f"few {name}"),) for name in LAYERS[:3]), selected=1),
    Tabs("Many", LAYERS, tuple((Paragraph(f"many {name}"),) for name in LAYERS)),
]


@pytest.fixture
def page(tmp_path: Path, open_page: Callable[..., BrowserPage]) -> BrowserPage:
    """Open a page of the figures with scripts."""
    write_page(
        tmp_path / "page.html", Page("Page", "", [Section("All", "", SHOWN, ["firth inspect"])])
    )
    opened = open_page(tmp_path / "page.html")
    opened.emulate_media(reduced_motion="reduce")  # no smooth scrolling below the pointer
    return opened


def test_tabs_are_switched_by_clicks_keys_and_the_slider(page: BrowserPage) -> None:
    shown = page.locator(".panel p:visible")
    assert shown.all_inner_texts() == ["few layer 2", "many layer 1"]
    page.click("role=tab[name='layer 3']")
    assert shown.first.inner_text() == "few layer 3"
    page.keyboard.press("ArrowRight")
    assert shown.first.inner_text() == "few layer 1"
    assert page.get_attribute("role=tab[name='layer 1']", "aria-selected") == "true"
    page.focus("input[type=range]")
    page.keyboard.press("End")
    assert shown.last.inner_text() == "many layer 25"
    assert page.inner_text("output") == "layer 25"


def test_tooltips_appear_for_the_pointer_and_the_keyboard(page: BrowserPage) -> None:
    tip = page.locator("#tip")
    assert not tip.is_visible()
    page.hover("td:text-is('word 1') >> nth=0")
    assert tip.inner_text() == "layer 0, token 1\n0.00448"
    page.focus("td:text-is('word 0') >> nth=0")
    for key, text in [("ArrowDown", "layer 1, token 0"), ("ArrowRight", "layer 1, token 1")]:
        page.keyboard.press(key)
        assert tip.inner_text().startswith(text)
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    page.hover(".weighted span >> nth=1")
    assert tip.inner_text() == "-0.125"
    page.hover("[data-cells] .point >> nth=8")
    assert tip.inner_text() == "group 2: text 8"


def test_a_legend_highlights_a_group(page: BrowserPage) -> None:
    faint = page.locator(".scatter .faint")
    page.click("role=button[name='group 1']")
    assert faint.count() == 23  # of 35 points
    assert "1" not in {point.get_attribute("data-group") for point in faint.all()}
    page.click("role=button[name='group 1']")
    assert faint.count() == 0
    page.click("role=button[name='y']")
    assert page.locator(".chart .faint").count() == 2


def test_commands_are_copied(page: BrowserPage) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("text=Copy")
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "firth inspect"


def test_nothing_sticks_out_of_a_narrow_page(
    page: BrowserPage, open_page: Callable[..., BrowserPage], tmp_path: Path
) -> None:
    narrow = open_page(tmp_path / "page.html", width=390, dark=True)
    assert narrow.evaluate("document.documentElement.scrollWidth") == 390
    assert narrow.evaluate("document.querySelector('.scroll').scrollWidth") > 3000
    name = narrow.locator("tbody th").first
    narrow.evaluate("document.querySelector('.scroll').scrollLeft = 900")
    box = name.bounding_box()
    assert box is not None
    assert 0 < box["x"] < 60  # the names of rows stay


def test_without_scripts_every_tab_is_shown() -> None:
    text = render_figures(SHOWN)
    assert len(re.findall('<div class="panel"><h4>layer [0-9]+</h4>', text)) == 28
