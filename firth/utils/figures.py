"""Figures as data: charts, tables and marked texts, shown in a terminal or on an HTML page.

A result is a list of figures. `firth.utils.html_page` renders them as HTML and
`firth.cli.views.figures` for a terminal, so that both show the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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


@dataclass(frozen=True)
class MarkedText:
    """A text with highlighted parts."""

    title: str
    pieces: tuple[Piece, ...]
    caption: str = ""


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars, as fractions of `scale`."""

    title: str
    bars: tuple[Bar, ...]
    scale: float = 1.0
    caption: str = ""


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


Figure = KeyNumbers | Paragraph | DataTable | MarkedText | BarChart | LineChart | AttentionMask
