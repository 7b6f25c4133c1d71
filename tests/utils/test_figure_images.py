"""Figures as PNG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from firth.utils import figure_images
from firth.utils.figure_images import image_figures, write_image
from firth.utils.figures import (
    AttentionMask,
    Bar,
    BarChart,
    Figure,
    Heatmap,
    LineChart,
    Paragraph,
    Point,
    ScatterPlot,
    ScatterPoint,
    Tabs,
    WeightedPiece,
    WeightedText,
)

ODD = "$x_{ 没 \U0001f600"  # no formula; characters that few fonts have
PICTURES: list[Figure] = [
    LineChart(ODD, ODD, ODD, {ODD: (Point(1, 2, 1, 3), Point(9, 3, 2, 4))}, log_x=True),
    BarChart(ODD, (Bar(ODD, 0.5, 0.25, 0.75),), caption=ODD),
    AttentionMask(ODD, (ODD, "b"), ((True, False), (True, True))),
    Heatmap(ODD, (ODD,), (ODD, "b"), ((-1.0, float("nan")),), ((ODD, ""),), low=-1, caption=ODD),
    ScatterPlot(ODD, (ScatterPoint(0, 0, ODD, ""), ScatterPoint(1, 1, "b", "")), ODD),
    ScatterPlot("one point", (ScatterPoint(7, -3, ODD, ""),)),
    ScatterPlot("no points", ()),
    WeightedText(ODD, (WeightedPiece(ODD, 0.5), WeightedPiece("b" * 90, -0.5)), ODD),
]


@pytest.mark.parametrize("figure", PICTURES, ids=lambda figure: type(figure).__name__)
def test_odd_characters_are_drawn_without_warnings(figure: Figure, tmp_path: Path) -> None:
    write_image(figure, tmp_path / "a.png")
    pixels = image.imread(tmp_path / "a.png")
    assert pixels.std() > 0.01


def test_figures_of_tabs_are_named() -> None:
    mask, text = PICTURES[2], Paragraph("text")
    titled = AttentionMask("mask of layer 2", ("a",), ((True,),))
    tabs = Tabs("Masks", ("1", "2"), ((mask, text), (text, titled)))
    titles = [one.title for one in image_figures([text, mask, tabs])]  # type: ignore[union-attr]
    assert titles == [ODD, f"1: {ODD}", "mask of layer 2"]


def test_long_heat_maps_have_a_limited_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_images, "DPI", 10)
    values = tuple(map(tuple, np.linspace(0, 1, 2000)[None]))
    names = tuple(f"token {i}" for i in range(2000))
    write_image(Heatmap("", ("a",), names, values, (names,)), tmp_path / "a.png")
    assert image.imread(tmp_path / "a.png").shape[1] < 500


def test_cells_have_the_colours_of_their_values(tmp_path: Path) -> None:
    figure = Heatmap("", ("a",), ("b", "c", "d"), ((0.0, -1.0, 1.0),), low=-1)
    write_image(figure, tmp_path / "a.png")
    pixels = (255 * image.imread(tmp_path / "a.png")[..., :3]).round().astype(int)
    found = set(map(tuple, pixels.reshape(-1, 3)))
    assert {(0x6B, 0x1F, 0x00), (0x08, 0x30, 0x6B)} <= found
