"""Terminal output of heat maps, scatter plots and weighted texts, with colours or numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.text import Text

from firth.utils.figures import Heatmap, ScatterPlot, WeightedText
from firth.utils.html_heatmap import cell_fraction
from firth.utils.svg_scatter import common_scale, group_numbers

POSITIVE, NEGATIVE, PAPER = (8, 60, 114), (140, 60, 0), (255, 255, 255)
CELL_WIDTH, NAME_WIDTH = 14, 24  # at most, in characters
PLOT_WIDTH, PLOT_HEIGHT = 64, 20
MARKS = "o+x*#@%&"
COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "white", "bright_black")


@dataclass(frozen=True)
class ConsoleLines:
    """Lines that depend on the console: whether it has colours, and its width."""

    lines: Callable[[bool, int], Iterable[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines for this console."""
        yield from self.lines(console.color_system is not None, options.max_width)


def heatmap(figure: Heatmap) -> ConsoleLines:
    """Draw cells on their colours; without colours, with their numbers."""
    return ConsoleLines(lambda coloured, width: _heatmap_lines(figure, coloured, width))


def _heatmap_lines(figure: Heatmap, coloured: bool, width: int) -> Iterator[Text]:
    """Draw as many columns side by side as fit, the others below."""
    cells = [
        [_cell_text(figure, row, column, coloured) for column in range(len(figure.columns))]
        for row in range(len(figure.rows))
    ]
    names = min(max(map(cell_len, (*figure.rows, figure.row_title))), NAME_WIDTH)
    sizes = [
        min(max(cell_len(text) for text in (name, *column)), CELL_WIDTH)
        for name, *column in zip(figure.columns, *cells, strict=True)
    ]
    if figure.column_title:
        yield Text(f"  {' ' * names}  {figure.column_title}", "dim")
    for number, block in enumerate(column_blocks(sizes, width - names - 4)):
        if number:
            yield Text("")
        head = Text(f"  {fit(figure.row_title, names)} ", "dim", no_wrap=True)
        for column in block:
            head.append(f" {fit(figure.columns[column], sizes[column])} ")
        yield head
        for row, name in enumerate(figure.rows):
            line = Text(f"  {fit(name, names)} ", no_wrap=True)
            for column in block:
                text = f" {fit(cells[row][column], sizes[column])} "
                line.append(text, _cell_style(figure, row, column) if coloured else "")
            yield line


def _cell_text(figure: Heatmap, row: int, column: int, coloured: bool) -> str:
    value = figure.values[row][column]
    if math.isnan(value):
        return ""
    text, number = figure.texts[row][column] if figure.texts else "", f"{value:.2f}"
    if not text or text == number:
        return number
    room = CELL_WIDTH - len(number) - 1
    return text if coloured else f"{fit(text, min(cell_len(text), room))} {number}"


def fit(text: str, size: int) -> str:
    """Fill or cut a text to this many columns of a terminal.

    >>> fit("cat", 4), fit("catalogue", 4), fit("犬", 4)
    ('cat ', 'cat…', '犬  ')
    """
    if cell_len(text) > size > 0:
        text = f"{set_cell_size(text, size - 1)}…"
    return set_cell_size(text, size)


def _cell_style(figure: Heatmap, row: int, column: int) -> str:
    value = figure.values[row][column]
    return "" if math.isnan(value) else _colours(cell_fraction(value, figure.low, figure.high))


def _colours(fraction: float) -> str:
    """Return a background of this strength and a text colour that is legible on it.

    >>> _colours(1.0), _colours(0.0)
    ('bright_white on #083c72', 'black on #ffffff')
    """
    strong = NEGATIVE if fraction < 0 else POSITIVE
    mixed = [round(p + abs(fraction) * (c - p)) for p, c in zip(PAPER, strong, strict=True)]
    text = "bright_white" if abs(fraction) > 0.55 else "black"
    return f"{text} on #{''.join(f'{part:02x}' for part in mixed)}"


def column_blocks(sizes: Sequence[int], width: int) -> list[list[int]]:
    """Divide columns into blocks that fit a width; each column needs two spaces.

    >>> column_blocks([4, 4, 4], 13)
    [[0, 1], [2]]
    """
    blocks: list[list[int]] = []
    used = width
    for column, size in enumerate(sizes):
        if used + size + 2 > width or not blocks:
            blocks.append([])
            used = 0
        blocks[-1].append(column)
        used += size + 2
    return blocks


def scatter_plot(plot: ScatterPlot) -> Text:
    """Draw the group with most points at each place of a grid, and a legend."""
    if not plot.points:
        return Text("  There are no points.")
    groups = group_numbers(plot.points)
    places = grid_places(plot)
    counts: dict[tuple[int, int], Counter[int]] = {}
    for point, place in zip(plot.points, places, strict=True):
        counts.setdefault(place, Counter())[groups[point.group]] += 1
    drawing = Text()
    for row in range(max(row for row, _ in places) + 1):
        drawing.append("  ")
        for column in range(max(column for _, column in places) + 1):
            found = counts.get((row, column))
            drawing.append(*_mark(found.most_common(1)[0][0]) if found else (" ", ""))
        drawing.append("\n")
    between = "\n" if sum(map(cell_len, groups)) + 5 * len(groups) > PLOT_WIDTH else ""
    for name, number in groups.items():
        drawing.append("  ").append(*_mark(number)).append(f" {name}{between}")
    drawing.rstrip()
    return drawing


def grid_places(plot: ScatterPlot) -> list[tuple[int, int]]:
    """Return the row and the column of each point; a character is twice as high as it is wide."""
    xs, ys = [p.x for p in plot.points], [p.y for p in plot.points]
    scale = common_scale(plot.points, PLOT_WIDTH - 1, 2 * (PLOT_HEIGHT - 1))
    return [
        (round(scale / 2 * (max(ys) - p.y)), round(scale * (p.x - min(xs)))) for p in plot.points
    ]


def _mark(group: int) -> tuple[str, str]:
    """Return a group's character and colour."""
    return MARKS[(group + group // len(COLOURS)) % len(MARKS)], COLOURS[group % len(COLOURS)]


def weighted_text(figure: WeightedText) -> ConsoleLines:
    """Write the parts on their colours; without colours, each with its number."""
    return ConsoleLines(lambda coloured, _: _weighted_lines(figure, coloured))


def _weighted_lines(figure: WeightedText, coloured: bool) -> Iterator[Text]:
    largest = max((abs(piece.weight) for piece in figure.pieces), default=0.0) or 1.0
    text = Text("  ")
    for piece in figure.pieces:
        text.append(piece.text, _colours(piece.weight / largest) if coloured else "")
        text.append("" if coloured else f"({piece.weight:+.2g})", "dim")
    yield text
    if coloured:
        scale = Text("  ").append(f" {-largest:+.2g} ", _colours(-1)).append(" 0 ", _colours(0))
        yield scale.append(f" {largest:+.2g} ", _colours(1))
