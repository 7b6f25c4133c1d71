"""Figures as data: charts, tables and marked texts, shown in a terminal or on an HTML page.

A result is a list of figures. `firth.utils.html_page` renders them as HTML and
`firth.cli.views.figures` for a terminal, so that both show the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from firth.utils.attention_view import AttentionView


class KeyNumber(NamedTuple):
    """A number and its meaning."""

    value: str
    meaning: str


class Piece(NamedTuple):
    """A part of a text; `mark` names its colour ("" for none), `label` is shown after it."""

    text: str
    mark: str = ""
    label: str = ""


class Bar(NamedTuple):
    """A bar of a chart, with its interval if it has one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


class Point(NamedTuple):
    """A point of a line, with its interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


def axis_number(value: float) -> str:
    """Format a number of an axis.

    >>> [axis_number(x) for x in (0.25, 3.2e-05, 2018, 30_000, 3_037_830)]
    ['0.25', '3.2e-05', '2018', '30k', '3.04M']
    """
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class KeyNumbers:
    """Numbers, each with its meaning."""

    rows: tuple[KeyNumber, ...]


@dataclass(frozen=True)
class Paragraph:
    """A sentence or two; a `warning` is emphasized."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class DataTable:
    """A table; the first column is aligned left, the others right unless all are `texts`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: bool = False
    marked: frozenset[tuple[int, int]] = frozenset()  # emphasized cells: (row, column)
    folded: bool = False  # only the title is shown until it is opened


@dataclass(frozen=True)
class MarkedText:
    """A text with highlighted parts."""

    title: str
    pieces: tuple[Piece, ...]
    caption: str = ""


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars, whose full length is `scale`; fractions of it are shown in percent."""

    title: str
    bars: tuple[Bar, ...]
    scale: float = 1.0
    caption: str = ""
    percent: bool = True

    def shown(self, value: float) -> str:
        """Format a value.

        >>> BarChart("Accuracy", ()).shown(0.25), BarChart("Bits", (), percent=False).shown(0.6391)
        ('25%', '0.639')
        """
        return f"{value / self.scale:.0%}" if self.percent else f"{value:.3g}"


@dataclass(frozen=True)
class LineChart:
    """Lines over a common horizontal axis."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, tuple[Point, ...]]
    log_x: bool = False
    caption: str = ""


@dataclass(frozen=True)
class AttentionMask:
    """Which tokens (columns) each token (row) may attend to."""

    title: str
    tokens: tuple[str, ...]
    visible: tuple[tuple[bool, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Heatmap:
    """A matrix of numbers as coloured cells."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]  # the colours; NaN: an empty cell
    texts: tuple[tuple[str, ...], ...] = ()  # in the cells; (): none
    details: tuple[tuple[str, ...], ...] = ()  # shown for the cell under the pointer
    low: float = 0.0
    high: float = 1.0  # low < 0 < high: two colours that meet at 0
    row_title: str = ""
    column_title: str = ""
    caption: str = ""


class ScatterPoint(NamedTuple):
    """A point of a scatter plot; points of one group have one colour and shape."""

    x: float
    y: float
    group: str
    text: str  # shown for the point under the pointer


@dataclass(frozen=True)
class ScatterPlot:
    """Points in two dimensions; the axes have no unit."""

    title: str
    points: tuple[ScatterPoint, ...]
    caption: str = ""


class WeightedPiece(NamedTuple):
    """A part of a text with the number that colours it."""

    text: str
    weight: float


@dataclass(frozen=True)
class WeightedText:
    """A text whose parts are coloured by positive and negative weights."""

    title: str
    pieces: tuple[WeightedPiece, ...]
    caption: str = ""


@dataclass(frozen=True)
class Tabs:
    """Groups of figures of which one is shown at a time, such as one per layer."""

    title: str
    names: tuple[str, ...]
    figures: tuple[tuple[Figure, ...], ...]
    selected: int = 0


Figure = (
    KeyNumbers
    | Paragraph
    | DataTable
    | MarkedText
    | BarChart
    | LineChart
    | AttentionMask
    | Heatmap
    | ScatterPlot
    | WeightedText
    | AttentionView
    | Tabs
)
