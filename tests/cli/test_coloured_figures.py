"""Heat maps, scatter plots, weighted texts and tabs in a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from firth.cli.views.figures import figures
from firth.utils.figures import (
    Figure,
    Heatmap,
    Paragraph,
    ScatterPlot,
    ScatterPoint,
    Tabs,
    WeightedPiece,
    WeightedText,
)

LENS = Heatmap(
    "Lens", ("layer 1", "layer 2"), ("a", "b"), ((0.25, 1.0), (0.5, float("nan"))),
    (("[cat]", "犬犬"), ("x", "")), caption="Caption",
)  # fmt: skip


def show(figure: Figure, colour: bool = False, width: int = 80) -> str:
    system = {"force_terminal": True, "color_system": "truecolor"} if colour else {}
    console = Console(file=StringIO(), width=width, **system)  # type: ignore[arg-type]
    console.print(*figures([figure]))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_cells_have_numbers_where_there_is_no_colour() -> None:
    lines = show(LENS).splitlines()
    assert lines[2].split() == ["layer", "1", "[cat]", "0.25", "犬犬", "1.00"]
    assert lines[3].split() == ["layer", "2", "x", "0.50"]
    coloured = show(LENS, colour=True)
    assert "48;2;8;60;114m 犬犬 " in coloured  # the strongest colour
    assert "1.00" not in coloured


def test_columns_that_do_not_fit_are_below() -> None:
    names = tuple(f"token{i}" for i in range(40))
    text = show(Heatmap("", ("a", "b"), names, ((0.5,) * 40,) * 2), width=60)
    assert text.split().count("a") > 5
    assert [word for word in text.split() if word.startswith("token")] == list(names)
    assert max(map(len, text.splitlines())) <= 60


def test_points_are_where_they_belong() -> None:
    points = [(0, 0, "low"), (2, 2, "high"), (2, 2, "high"), (2, 2, "low")]
    lines = show(ScatterPlot("", tuple(ScatterPoint(*p, "") for p in points))).splitlines()
    assert lines[0].split() == ["+"]  # most points there are high
    assert lines[-3].split() == ["o"]
    assert lines[0].index("+") > lines[-3].index("o")
    assert lines[-2].split() == ["o", "low", "+", "high"]


def test_plots_of_one_point_or_none() -> None:
    lines = show(ScatterPlot("", (ScatterPoint(7, -3, "a", ""),))).splitlines()
    assert [line.split() for line in lines if line] == [["o"], ["o", "a"]]
    assert "no points" in show(ScatterPlot("", ()))


def test_weights_are_signed_where_there_is_no_colour() -> None:
    text = WeightedText("", (WeightedPiece("good", 0.25), WeightedPiece(" film", -0.125)))
    assert "good(+0.25) film(-0.12)" in show(text)
    assert "film" in show(text, colour=True)
    assert "(" not in show(text, colour=True)


def test_the_selected_tab_is_shown_and_the_others_are_named() -> None:
    names = tuple(f"layer {i}" for i in range(1, 21))
    tabs = Tabs("Layers", names, tuple((Paragraph(f"text of {name}"),) for name in names), 2)
    text = show(tabs)
    assert "Layers: layer 3" in text
    assert "text of layer 3" in text
    assert "layer 4" in text
    assert "layer 20" in text
    assert "text of layer 4" not in text
    assert "layer 15" not in text
