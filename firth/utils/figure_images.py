"""Figures as PNG files, drawn by matplotlib: pictures for slides and papers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from firth.utils.attention_view import AttentionPart, AttentionView, LayerAttention
from firth.utils.figures import (
    AttentionMask,
    BarChart,
    Figure,
    Heatmap,
    LineChart,
    ScatterPlot,
    Tabs,
    WeightedText,
    axis_number,
)
from firth.utils.files import atomic_file
from firth.utils.plotting import COLOURS, plain_text
from firth.utils.svg_scatter import colour_and_shape, group_numbers

# As on the page in light mode (html_page.css).
POSITIVE, NEGATIVE = ("#ffffff", "#5499ce", "#08306b"), ("#6b1f00", "#d37a34", "#ffffff")
MARKERS = "os^DvPX_"
DPI = 150
THUMBNAIL = 96  # pixels of a head in the overview of attention, at most
LONGEST = 40.0  # inches; cells of larger heat maps are smaller and without text
MOST_CHARACTERS, MOST_NAMES = 14, 200  # of a text in a cell; of rows or columns
LINE_WIDTH, LINE_HEIGHT, LEFT = 7.0, 0.32, 0.2  # of weighted texts, in inches
Image = Any  # matplotlib.figure.Figure


def image_figures(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    """Return the figures that have an image; those of tabs have the name of their tab.

    >>> mask = AttentionMask("mask", ("a",), ((True,),))
    >>> [one.title for one in image_figures([Tabs("", ("layer 1", "layer 2"), ((mask,), (mask,)))])]
    ['layer 1: mask', 'layer 2: mask']
    """
    chosen: list[Figure] = []
    for figure in figures:
        if isinstance(figure, Tabs):
            for name, group in zip(figure.names, figure.figures, strict=True):
                chosen += (_titled(one, name, figure.title) for one in image_figures(group))
        elif type(figure) in IMAGES:
            chosen.append(figure)
    return tuple(chosen)


def _titled(figure: Any, tab: str, title: str) -> Any:
    """Put the name of a tab before the title of its figure, unless it is part of it."""
    title = figure.title or title
    named = re.search(rf"(?<!\w){re.escape(tab)}(?!\w)", title)
    return figure if named else replace(figure, title=f"{tab}: {title}" if title else tab)


def write_image(figure: Figure, path: Path) -> None:
    """Write a figure that `image_figures` returns as a PNG file."""
    with plain_text():
        image = IMAGES[type(figure)](figure)
        with atomic_file(path) as file:
            image.savefig(file, format="png", dpi=DPI)


def _image(width: float, height: float, title: str, caption: str = "") -> tuple[Image, Any]:
    """Make an image with one plot."""
    from matplotlib.figure import Figure

    image = Figure(figsize=(width, height), layout="constrained")
    axes = image.add_subplot()
    axes.set_title(title, fontsize=11, loc="left", wrap=True)
    if caption:
        image.supxlabel(caption, fontsize=8, color="dimgrey", wrap=True)
    return image, axes


def _lines(chart: LineChart) -> Image:
    image, axes = _image(7, 4, chart.title, chart.caption)
    for name, line in chart.lines.items():
        xs, ys = [p.x for p in line], [p.y for p in line]
        (drawn,) = axes.plot(xs, ys, label=name, marker="o" if len(line) < 20 else "", markersize=4)
        bounds = [(p.x, p.low, p.high) for p in line if p.low is not None and p.high is not None]
        if bounds:
            axes.fill_between(*zip(*bounds, strict=True), color=drawn.get_color(), alpha=0.15)
    if chart.log_x:
        xs = sorted({p.x for line in chart.lines.values() for p in line})
        axes.set_xscale("log")
        axes.set_xticks(xs, [axis_number(x) for x in xs])
        axes.minorticks_off()
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart.lines) > 1:
        axes.legend(fontsize=8, frameon=False)
    return image


def _bars(chart: BarChart) -> Image:
    image, axes = _image(7, 0.9 + 0.35 * len(chart.bars), chart.title, chart.caption)
    places = range(len(chart.bars))
    axes.barh(places, [bar.value / chart.scale for bar in chart.bars], color=COLOURS[0])
    for place, bar in zip(places, chart.bars, strict=True):
        if bar.low is not None and bar.high is not None:
            ends = bar.low / chart.scale, bar.high / chart.scale
            axes.plot(ends, (place, place), color="black", linewidth=1.2)
    axes.set_yticks(places, [bar.name for bar in chart.bars])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda length, _: chart.shown(length * chart.scale))
    axes.spines[["top", "right"]].set_visible(False)
    return image


def _mask(mask: AttentionMask) -> Image:
    size = 1.4 + 0.33 * len(mask.tokens)
    image, axes = _image(size, size, mask.title, mask.caption)
    axes.pcolormesh(mask.visible, cmap=_colour_map(two=False), vmax=1.6, edgecolors="white")
    _name_cells(axes, mask.tokens, mask.tokens)
    axes.set_aspect("equal")
    return image


def _heatmap(figure: Heatmap) -> Image:
    longest = max((len(text) for row in figure.texts for text in row), default=0)
    cell = max(0.3, 0.1 + 0.075 * min(longest, MOST_CHARACTERS))
    small = cell * len(figure.columns) > LONGEST
    width = 1.6 + 0.07 * max(map(len, figure.rows)) + min(cell * len(figure.columns), LONGEST)
    height = 1.6 + min(0.3 * len(figure.rows), LONGEST)
    image, axes = _image(max(width, 4), height, figure.title, figure.caption)
    two = figure.low < 0 < figure.high
    limit = max(-figure.low, figure.high)
    low, high = (-limit, limit) if two else (figure.low, figure.high)
    mesh = axes.pcolormesh(
        figure.values, cmap=_colour_map(two), vmin=low, vmax=high,
        edgecolors="none" if small else "white",
    )  # fmt: skip
    _name_cells(axes, figure.rows, figure.columns)
    if not small:
        _write_cells(axes, figure, mesh)
    axes.set_xlabel(figure.column_title)
    axes.set_ylabel(figure.row_title)
    image.colorbar(mesh, ax=axes, shrink=0.8, pad=0.01)
    return image


def _colour_map(two: bool) -> Any:
    """Return one colour for 0 to 1, or two that meet at 0."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = (*NEGATIVE, *POSITIVE[1:]) if two else POSITIVE
    return LinearSegmentedColormap.from_list("firth", colours)


def _name_cells(axes: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Write the names of rows and columns beside the cells, the first row on top."""
    short = max(map(len, columns)) <= 3
    every = 1 + len(columns) // MOST_NAMES
    places = range(0, len(columns), every)
    shown = [columns[i] for i in places]
    axes.set_xticks([i + 0.5 for i in places], shown, rotation=0 if short else 90)
    places = range(0, len(rows), 1 + len(rows) // MOST_NAMES)
    axes.set_yticks([i + 0.5 for i in places], [rows[i] for i in places])
    axes.tick_params(length=0, labelsize=8)
    axes.invert_yaxis()


def _write_cells(axes: Any, figure: Heatmap, mesh: Any) -> None:
    """Write the texts into the cells, white on dark ones."""
    for row, texts in enumerate(figure.texts):
        for column, text in enumerate(texts):
            shown = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
            colour = _readable(mesh.cmap(mesh.norm(figure.values[row][column])))
            place = {"ha": "center", "va": "center", "fontsize": 7.5}
            axes.text(column + 0.5, row + 0.5, shown, color=colour, **place)


def _readable(background: Sequence[float]) -> str:
    """Choose black or white text by the brightness of what is below it."""
    red, green, blue = background[:3]
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"


def _scatter(plot: ScatterPlot) -> Image:
    image, axes = _image(6.5, 5, plot.title, plot.caption)
    groups = group_numbers(plot.points)
    for name, number in groups.items():
        points = [p for p in plot.points if p.group == name]
        colour, shape = colour_and_shape(number)
        axes.scatter(
            [p.x for p in points], [p.y for p in points], s=28 if len(plot.points) < 200 else 12,
            color=COLOURS[colour], marker=MARKERS[shape], label=name, alpha=0.85,
            linewidths=1 if MARKERS[shape] == "_" else 0,
        )  # fmt: skip
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    if len(groups) > 1:
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return image


def _weighted(figure: WeightedText) -> Image:
    """Write the parts of the text on their colours, in lines as wide as the image."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    image = Figure(figsize=(LINE_WIDTH + 2 * LEFT, 1), dpi=DPI)
    axes = image.add_axes((0, 0, 1, 1))  # its unit is an inch, from the upper left corner
    axes.axis("off")
    largest = max((abs(piece.weight) for piece in figure.pieces), default=0.0) or 1.0
    colours = [_colour_map(two=True)(0.5 + piece.weight / largest / 2) for piece in figure.pieces]
    style: dict[str, Any] = {"fontsize": 10, "va": "center"}
    texts = [
        axes.text(0, 0, piece.text.replace("\n", "⏎"), color=_readable(colour), **style)
        for piece, colour in zip(figure.pieces, colours, strict=True)
    ]
    widths = [text.get_window_extent().width / DPI for text in texts]
    top = 0.6
    for text, width, colour, (line, left) in zip(
        texts, widths, colours, flow(widths, LINE_WIDTH), strict=True
    ):
        top = 0.6 + LINE_HEIGHT * line
        text.set_position((LEFT + left, top))
        box = Rectangle((LEFT + left, top - 0.12), width, 0.24, facecolor=colour, linewidth=0)
        axes.add_patch(box)
    below = " ".join(filter(None, (f"Colours: -{largest:.2g} to +{largest:.2g}.", figure.caption)))
    axes.text(LEFT, 0.25, figure.title, fontsize=11, va="center")
    caption = textwrap.wrap(below, 110)
    axes.text(LEFT, top + 0.28, "\n".join(caption), fontsize=8, va="top", color="dimgrey")
    height = top + 0.4 + 0.15 * len(caption)
    image.set_size_inches(LINE_WIDTH + 2 * LEFT, height)
    axes.set(xlim=(0, LINE_WIDTH + 2 * LEFT), ylim=(height, 0))
    return image


def flow(widths: Iterable[float], room: float) -> list[tuple[int, float]]:
    """Put boxes into lines: the number of the line and the left end of each.

    >>> flow([3, 4, 2, 6], 8)
    [(0, 0.0), (0, 3.0), (1, 0.0), (1, 2.0)]
    """
    places, line, left = [], 0, 0.0
    for width in widths:
        if left and left + width > room:
            line, left = line + 1, 0.0
        places.append((line, left))
        left += width
    return places


def _attention(view: AttentionView) -> Image:
    """Draw all heads of each part, layers down and heads across."""
    rows, bottom = [], 0.0  # (part, layer, top), one row for each layer
    for part in view.parts:
        bottom += 0.4  # the name of the part
        for layer in part.layers:
            rows.append((part, layer, bottom))
            bottom += _shape(part) + 0.3
    heads = sorted({head for _, layer, _ in rows for head in layer.heads})
    width = 2.6 + heads[-1] - heads[0]
    image, axes = _image(width, 1 + bottom, view.title, view.caption)
    for row in rows:
        _draw_layer(axes, *row)
    axes.set(xlim=(heads[0] - 0.5, heads[-1] + 0.5), ylim=(bottom, 0), aspect="auto")
    axes.set_xticks(heads, [f"head {head}" for head in heads], fontsize=8)
    axes.xaxis.tick_top()
    middles = [top + 0.45 * _shape(part) for part, _, top in rows]
    axes.set_yticks(middles, [f"layer {layer.number}" for _, layer, _ in rows], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    image.colorbar(axes.images[0], shrink=0.4, aspect=30, format=lambda v, _: f"{v:.0%}")
    return image


def _shape(part: AttentionPart) -> float:
    """Return the height of a head whose width is 1."""
    return min(max(len(part.queries) / len(part.keys), 0.5), 2.0)


def _draw_layer(axes: Any, part: AttentionPart, layer: LayerAttention, top: float) -> None:
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(2 / 3, vmin=0, vmax=1)  # as in the browser
    if layer is part.layers[0]:
        axes.text(layer.heads[0] - 0.45, top - 0.07, part.name, fontsize=10)
    pixels = (min(len(part.queries), THUMBNAIL), min(len(part.keys), THUMBNAIL))
    for place, (head, picture) in enumerate(
        zip(layer.heads, layer.weights.pooled(*pixels), strict=True)
    ):
        extent = (head - 0.45, head + 0.45, top + 0.9 * _shape(part), top)
        axes.imshow(picture, cmap="Blues", norm=norm, extent=extent, interpolation="none")
        if layer.patterns and (pattern := layer.patterns[place]):
            label = f"{pattern[0]}\n{pattern[1]:.2f}"
            axes.text(head, extent[2] + 0.02, label, ha="center", va="top", fontsize=6.5)


IMAGES: Mapping[type, Callable[[Any], Image]] = {
    LineChart: _lines,
    BarChart: _bars,
    AttentionMask: _mask,
    Heatmap: _heatmap,
    ScatterPlot: _scatter,
    WeightedText: _weighted,
    AttentionView: _attention,
}
