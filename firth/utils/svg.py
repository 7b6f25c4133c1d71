"""Charts as inline SVG; their colours are CSS variables of the page (`firth.utils.html_page`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from firth.utils.figures import AttentionMask, LineChart, Point, axis_number

WIDTH, HEIGHT = 520, 280
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 16, 46  # margins of the plot
NUM_TICKS, NUM_X_TICKS = 5, 8
INSET = 30  # room for error bars at both ends
TICK_WIDTH = 40  # room for the number of a tick
CELL, LABELS = 28, 76  # size of a cell of a mask, room for its tokens
NUM_COLOURS, NUM_DASHES = 8, 4  # of lines
Scale = Callable[[float], float]


def line_chart(chart: LineChart) -> str:
    """Draw lines, with intervals as bars and bands where points have them."""
    points = [point for line in chart.lines.values() for point in line]
    xs = [point.x for point in points]
    whole = all(float(x).is_integer() for x in xs)  # such as layers
    x_ticks = sorted(set(xs)) if chart.log_x else _ticks(xs, NUM_X_TICKS, whole=whole)
    bounds = [end for p in points for end in (p.y, p.low, p.high) if end is not None]
    ys = _ticks(bounds)
    bars = INSET if any(p.low is not None for p in points) else 0.0
    place_x = _scale(xs, LEFT + bars, WIDTH - RIGHT - bars, log=chart.log_x)
    place_y = _scale([*bounds, *ys], HEIGHT - BOTTOM, TOP)
    parts = [_axes(_apart(x_ticks, place_x), ys, place_x, place_y, chart)]
    several = len(chart.lines)
    for number, line in enumerate(chart.lines.values()):
        shift = 6.0 * (number - (several - 1) / 2) if any(p.low is not None for p in line) else 0.0
        parts.append(_line(line, number, lambda x, s=shift: place_x(x) + s, place_y))  # type: ignore[misc]
    return draw_svg(WIDTH, HEIGHT, f"{chart.title}: {_in_words(chart)}", parts)


def _axes(
    xs: Sequence[float], ys: Sequence[float], place_x: Scale, place_y: Scale, chart: LineChart
) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    rows = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{place_y(y):.1f}" y2="{place_y(y):.1f}"/>'
        f'<text class="tick" x="{LEFT - 8}" y="{place_y(y) + 4:.1f}" text-anchor="end">'
        f"{axis_number(y)}</text>"
        for y in ys
        if TOP - 1 <= place_y(y) <= bottom + 1
    )
    columns = "".join(
        f'<text class="tick" x="{place_x(x):.1f}" y="{bottom + 18}" text-anchor="middle">'
        f"{axis_number(x)}</text>"
        for x in xs
        if LEFT - 1 <= place_x(x) <= right + 1
    )
    middle = (LEFT + right) / 2
    return (
        f'{rows}{columns}<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">'
        f'{escape(chart.x_label)}</text><text class="axis" text-anchor="middle" '
        f'transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)">{escape(chart.y_label)}</text>'
    )


def _line(line: Sequence[Point], number: int, place_x: Scale, place_y: Scale) -> str:
    """Draw one line; points with intervals get a dot and an error bar."""
    path = " ".join(f"{place_x(p.x):.1f},{place_y(p.y):.1f}" for p in line)
    own = f'c{number % NUM_COLOURS}" data-group="{number}'
    parts = [f'<polyline class="{line_class(number)}" data-group="{number}" points="{path}"/>']
    for p in line:
        x, y = place_x(p.x), place_y(p.y)
        if p.low is not None and p.high is not None:
            top, bottom = place_y(p.high), place_y(p.low)
            caps = "".join(f"M{x - 5:.1f} {end:.1f}h10" for end in (top, bottom))
            parts.append(f'<path class="error {own}" d="M{x:.1f} {top:.1f}V{bottom:.1f}{caps}"/>')
        if p.low is not None or len(line) == 1:
            parts.append(f'<circle class="{own}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
    return "".join(parts)


def line_class(number: int) -> str:
    """Return the CSS classes of a line: more lines than colours differ in their dashes.

    >>> line_class(1), line_class(9)
    ('line c1 dash0', 'line c1 dash1')
    """
    return f"line c{number % NUM_COLOURS} dash{number // NUM_COLOURS % NUM_DASHES}"


def legend_entry(number: int, name: str) -> str:
    """Draw the entry of a line in a legend, a button that highlights the line."""
    return (
        f'<button type="button" aria-pressed="false" data-group="{number}">'
        f'<svg viewBox="0 0 28 16" aria-hidden="true"><path class="{line_class(number)}" '
        f'd="M1 8H27"/></svg>{escape(name)}</button>'
    )


def attention_mask(mask: AttentionMask) -> str:
    """Draw a grid: a filled cell means that the token of its row attends to that of its column."""
    n = len(mask.tokens)
    size = LABELS + n * CELL + 2
    cells = [
        f'<rect class="{"on" if seen else "off"}" x="{LABELS + column * CELL + 1.5}" '
        f'y="{LABELS + row * CELL + 1.5}" width="{CELL - 3}" height="{CELL - 3}" rx="4"/>'
        for row, line in enumerate(mask.visible)
        for column, seen in enumerate(line)
    ]
    for place, token in enumerate(mask.tokens):
        centre = LABELS + place * CELL + CELL / 2
        name = escape(token)
        cells.append(
            f'<text class="tick" x="{LABELS - 8}" y="{centre + 4}" text-anchor="end">{name}</text>'
            f'<text class="tick" transform="translate({centre + 4} {LABELS - 8}) rotate(-90)">'
            f"{name}</text>"
        )
    seen = sum(map(sum, mask.visible))
    return draw_svg(size, size, f"{mask.title}: {seen} of {n * n} connections", cells)


def draw_svg(
    width: int, height: int, title: str, parts: Iterable[str], attributes: str = 'role="img"'
) -> str:
    """Put a drawing together; `title` describes it for readers who do not see it."""
    return (
        f'<svg viewBox="0 0 {width} {height}" {attributes} aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _in_words(chart: LineChart) -> str:
    """Describe the lines for readers who do not see them."""
    ends = (
        f"{name} from {line[0].y:.3g} to {line[-1].y:.3g}"
        for name, line in chart.lines.items()
        if line
    )
    return f"{chart.y_label} over {chart.x_label}: {'; '.join(ends)}"


def _scale(values: Sequence[float], first: float, last: float, log: bool = False) -> Scale:
    """Map the range of values to pixels."""
    change: Scale = math.log if log else float
    low, high = change(min(values)), change(max(values))

    def place(value: float) -> float:
        fraction = (change(value) - low) / (high - low) if high > low else 0.5
        return first + fraction * (last - first)

    return place


def _ticks(values: Sequence[float], count: int = NUM_TICKS, whole: bool = False) -> list[float]:
    """Choose about `count` round numbers around the values; with `whole`, integers.

    >>> _ticks([0.31, 0.93]), _ticks([0, 24], count=8)
    ([0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0])
    >>> _ticks([0, 2], whole=True)
    [0.0, 1.0, 2.0]
    """
    low, high = min(values), max(values)
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 4, 5, 10) if power * size >= rough)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def _apart(ticks: Sequence[float], place: Scale) -> list[float]:
    """Leave out ticks whose numbers would overlap with that of a larger one.

    >>> _apart([10, 270, 300], place=float)
    [10, 300]
    """
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or place(kept[0]) - place(tick) >= TICK_WIDTH:
            kept.insert(0, tick)
    return kept
