"""Scatter plots as inline SVG: groups differ in colour and in shape."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from firth.utils.figures import ScatterPlot, ScatterPoint
from firth.utils.svg import draw_svg

WIDTH, MARGIN = 560, 14
HEIGHTS = 220, 460  # the lowest and the highest plot
MANY, SIZES = 150, (5.5, 3.6)  # the size of a point in plots with at most and more than `MANY`
NUM_COLOURS = 8
# Paths around the origin, for a size of 1.
SHAPES = (
    ((-1, 0), "a1 1 0 1 0 2 0a1 1 0 1 0 -2 0z"),  # circle
    ((-0.9, -0.9), "h1.8v1.8h-1.8z"),  # square
    ((0, -1.15), "l1.15 2h-2.3z"),  # triangle
    ((0, -1.3), "l1.3 1.3l-1.3 1.3l-1.3 -1.3z"),  # diamond
    ((0, 1.15), "l1.15 -2h-2.3z"),  # triangle that points down
    ((-0.4, -1.2), "h0.8v0.8h0.8v0.8h-0.8v0.8h-0.8v-0.8h-0.8v-0.8h0.8z"),  # plus
    ((0, -0.55), "l0.65 -0.65l0.55 0.55l-0.65 0.65l0.65 0.65l-0.55 0.55l-0.65 -0.65l-0.65 0.65"
     "l-0.55 -0.55l0.65 -0.65l-0.65 -0.65l0.55 -0.55z"),  # cross
    ((-1.2, -0.5), "h2.4v1h-2.4z"),  # bar
)  # fmt: skip


def scatter_plot(plot: ScatterPlot) -> str:
    """Draw a legend of the groups and their points, with one scale for both axes."""
    if not plot.points:
        return "<p>There are no points.</p>"
    groups = group_numbers(plot.points)
    names = "".join(_legend_entry(number, name) for name, number in groups.items())
    legend = f'<div class="legend groups">{names}</div>' if len(groups) > 1 else ""
    return legend + _points(plot, groups)


def group_numbers(points: Sequence[ScatterPoint]) -> dict[str, int]:
    """Number the groups in the order of their first points."""
    return {name: number for number, name in enumerate(dict.fromkeys(p.group for p in points))}


def common_scale(points: Sequence[ScatterPoint], width: float, height: float) -> float:
    """Return the largest scale of both axes at which all points fit; 1 if all are at one place."""
    xs, ys = [p.x for p in points], [p.y for p in points]
    extents = (max(xs) - min(xs), width), (max(ys) - min(ys), height)
    return min((room / extent for extent, room in extents if extent), default=1.0)


def colour_and_shape(group: int) -> tuple[int, int]:
    """Choose a group's colour and shape; 64 groups differ in at least one of them.

    >>> colour_and_shape(1), colour_and_shape(9)
    ((1, 1), (1, 2))
    """
    return group % NUM_COLOURS, (group + group // NUM_COLOURS) % len(SHAPES)


def _legend_entry(number: int, name: str) -> str:
    mark = _marker(number, 8.0, 8.0, 6.0)
    return (
        f'<button type="button" aria-pressed="false" data-group="{number}">'
        f'<svg viewBox="0 0 16 16" aria-hidden="true">{mark}</svg>{escape(name)}</button>'
    )


def _points(plot: ScatterPlot, groups: dict[str, int]) -> str:
    xs, ys = [p.x for p in plot.points], [p.y for p in plot.points]
    scale = common_scale(plot.points, WIDTH - 2 * MARGIN, HEIGHTS[1] - 2 * MARGIN)
    height = max(HEIGHTS[0], round(scale * (max(ys) - min(ys))) + 2 * MARGIN)
    left = WIDTH / 2 - scale * (min(xs) + max(xs)) / 2
    bottom = height / 2 + scale * (min(ys) + max(ys)) / 2
    size = SIZES[len(plot.points) > MANY]
    marks = (
        _marker(groups[p.group], left + scale * p.x, bottom - scale * p.y, size, _tip(p, groups))
        for p in plot.points
    )
    frame = f'<rect class="frame" width="{WIDTH}" height="{height}" rx="10"/>'
    about = f"{plot.title}: {len(plot.points)} points in {len(groups)} groups"
    return draw_svg(WIDTH, height, about, [frame, *marks], 'role="group" data-cells')


def _tip(point: ScatterPoint, groups: dict[str, int]) -> str:
    return f"{point.group}: {point.text}" if len(groups) > 1 and point.group else point.text


def _marker(group: int, x: float, y: float, size: float, tip: str = "") -> str:
    """Draw a point in its group's colour and shape."""
    colour, shape = colour_and_shape(group)
    (dx, dy), path = SHAPES[shape]
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return (
        f'<path class="point c{colour}" data-group="{group}" '
        f'transform="translate({x:.1f} {y:.1f}) scale({size:g})" d="M{dx} {dy}{path}">'
        f"{title}</path>"
    )
