"""Terminal output of figures: charts, tables and marked texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from firth.cli.terminal import COLOURS, new_table
from firth.cli.views import coloured_figures
from firth.utils.attention_view import AttentionPart, AttentionView
from firth.utils.figures import (
    AttentionMask,
    Bar,
    BarChart,
    DataTable,
    Figure,
    Heatmap,
    KeyNumbers,
    LineChart,
    MarkedText,
    Paragraph,
    Point,
    ScatterPlot,
    Tabs,
    WeightedText,
    axis_number,
)

STYLES = dict(zip("abcd", COLOURS, strict=True)) | {
    "right": "black on #b9e3b0",
    "wrong": "black on #f2b8ae",
    "hidden": "bold white on red",
    "prefix": "underline",
    "soft": "dim",
    "strong": "bold",
}
BAR_WIDTH, CURVE_WIDTH = 24, 40
BLOCKS = "▁▂▃▄▅▆▇█"
MOST_NAMES = 6  # of the tabs that are not shown


def figures(shown: Iterable[Figure]) -> list[RenderableType]:
    """Show figures one after another, each followed by an empty line."""
    return [Group(RENDERERS[type(one)](one), "") for one in shown]


def _facts(facts: KeyNumbers) -> RenderableType:
    width = max(len(row.value) for row in facts.rows)
    lines = Text()
    for number, row in enumerate(facts.rows):
        lines.append("\n" if number else "").append(f"{row.value:>{width}}  ", "bold")
        lines.append(row.meaning)
    return lines


def _paragraph(paragraph: Paragraph) -> Text:
    return Text(paragraph.text, "bold yellow" if paragraph.warning else "")


def _titled(title: str, *parts: RenderableType, caption: str = "") -> Group:
    above = [Text(title, "bold")] if title else []
    below = [Text(caption, "dim")] if caption else []
    return Group(*above, *parts, *below)


def _table(table: DataTable) -> RenderableType:
    if table.folded:
        return Text(f"{table.title} (not shown here)", "dim")
    left = range(len(table.columns)) if table.texts else (0,)
    rows = [
        [Text(cell, "bold" if (i, j) in table.marked else "") for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]
    return _titled(table.title, new_table(*table.columns, rows=rows, left=left, plain=True))


def _marked(marked: MarkedText) -> RenderableType:
    text = Text()
    for piece in marked.pieces:
        text.append(piece.text, STYLES.get(piece.mark, ""))
        text.append(f" [{piece.label}]" if piece.label else "", "dim")
    return _titled(marked.title, Padding(text, (0, 0, 0, 2), expand=False), caption=marked.caption)


def _bars(chart: BarChart) -> RenderableType:
    rows = [
        (bar.name, _bar(bar.value / chart.scale), _ends(bar, chart.shown)) for bar in chart.bars
    ]
    width = max(len(name) for name, _, _ in rows)
    lines = Text("\n").join(
        Text(f"  {name:<{width}}  ").append(bar, "cyan").append(f"  {ends}")
        for name, bar, ends in rows
    )
    return _titled(chart.title, lines, caption=chart.caption)


def _bar(fraction: float) -> str:
    """Draw a bar.

    >>> _bar(0.5).rstrip()
    '████████████'
    """
    return ("█" * max(round(BAR_WIDTH * fraction), 0) or "▏").ljust(BAR_WIDTH)


def _ends(bar: Bar, shown: Callable[[float], str]) -> str:
    if bar.low is None or bar.high is None:
        return shown(bar.value)
    return f"{shown(bar.value)} ({shown(bar.low)} to {shown(bar.high)})"


def _lines(chart: LineChart) -> RenderableType:
    """Draw each line as a row of blocks; lines with intervals are in a table of their own."""
    width = max(len(name) for name in chart.lines)
    ys = [point.y for line in chart.lines.values() for point in line]
    rows = []
    for name, line in chart.lines.items():
        row = Text(f"  {name:<{width}}  ").append(_curve(line, min(ys), max(ys)), "cyan")
        rows.append(row.append(f"  {line[0].y:.2f} → {line[-1].y:.2f}"))
    xs = [point.x for line in chart.lines.values() for point in line]
    ends = f"  {chart.y_label}; {chart.x_label}: {axis_number(min(xs))} to {axis_number(max(xs))}"
    axis = Text(ends, "dim")
    return _titled(chart.title, *rows, axis, caption=chart.caption)


def _curve(line: Sequence[Point], low: float, high: float) -> str:
    """Draw values as blocks of increasing height.

    >>> _curve([Point(0, 1.0), Point(1, 0.5), Point(2, 0.0)], 0.0, 1.0)
    '█▅▁'
    """
    step = max(1, -(-len(line) // CURVE_WIDTH))
    heights = ((point.y - low) / (high - low or 1.0) for point in line[::step])
    return "".join(BLOCKS[round(height * (len(BLOCKS) - 1))] for height in heights)


def _mask(mask: AttentionMask) -> RenderableType:
    width = max(map(cell_len, mask.tokens))
    rows = Text("\n").join(
        Text(f"  {' ' * (width - cell_len(token))}{token}  ").append(
            " ".join("■" if seen else "·" for seen in row), "cyan"
        )
        for token, row in zip(mask.tokens, mask.visible, strict=True)
    )
    return _titled(mask.title, rows, caption=mask.caption)


def _attention(view: AttentionView) -> RenderableType:
    """List the heads of each pattern; the weights themselves are for a browser."""
    tables = [_table(_labelled_heads(part)) for part in view.parts]
    return _titled(view.title, *tables, caption=view.caption)


def _labelled_heads(part: AttentionPart) -> DataTable:
    found: dict[str, list[tuple[float, str]]] = {}
    for layer in part.layers:
        for head, pattern in zip(layer.heads, layer.patterns, strict=False):
            if pattern:
                found.setdefault(pattern[0], []).append((pattern[1], f"{layer.number}-{head}"))
    rows = tuple(
        (name, ", ".join(f"{head} ({value:.2f})" for value, head in sorted(heads, reverse=True)))
        for name, heads in found.items()
    )
    title = f"{part.name}: heads with a pattern" if rows else f"{part.name}: no head has a pattern"
    return DataTable(title, ("pattern", "layer-head") if rows else (), rows, texts=True)


def _heatmap(figure: Heatmap) -> RenderableType:
    return _titled(figure.title, coloured_figures.heatmap(figure), caption=figure.caption)


def _scatter(plot: ScatterPlot) -> RenderableType:
    return _titled(plot.title, coloured_figures.scatter_plot(plot), caption=plot.caption)


def _weighted(figure: WeightedText) -> RenderableType:
    return _titled(figure.title, coloured_figures.weighted_text(figure), caption=figure.caption)


def _tabs(tabs: Tabs) -> RenderableType:
    """Show the selected group, and name the others."""
    selected = tabs.names[tabs.selected]
    others = [name for name in tabs.names if name != selected]
    if len(others) > MOST_NAMES:
        others[MOST_NAMES - 1 : -1] = ["…"]
    rest = Text(f" (not shown here: {', '.join(others)})" if others else "", "not bold dim")
    title = f"{tabs.title}: {selected}" if tabs.title else selected
    return Group(Text(title, "bold").append_text(rest), *figures(tabs.figures[tabs.selected]))


RENDERERS: dict[type[Any], Any] = {
    KeyNumbers: _facts,
    Paragraph: _paragraph,
    DataTable: _table,
    MarkedText: _marked,
    BarChart: _bars,
    LineChart: _lines,
    AttentionMask: _mask,
    AttentionView: _attention,
    Heatmap: _heatmap,
    ScatterPlot: _scatter,
    WeightedText: _weighted,
    Tabs: _tabs,
}
