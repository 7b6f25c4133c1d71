"""Figures on a page: structure, escaping, and no network request."""

from __future__ import annotations

import math
import re

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
from firth.utils.html_page import RENDERERS, Page, Section, render_figures, render_page

EVIL = '<script>alert("x")</script>'
FIGURES: list[Figure] = [
    KeyNumbers((KeyNumber(EVIL, EVIL),)),
    Paragraph(EVIL),
    DataTable(EVIL, (EVIL,), ((EVIL,),)),
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
