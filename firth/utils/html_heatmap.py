"""Heat maps and weighted texts as HTML: backgrounds whose colour shows a number.

The fraction of colour in a background is the CSS variable `--v` of its element; the classes
`negative` and `dark` choose the second colour, and a text that is legible on a strong one.
"""

from __future__ import annotations

import math
from html import escape

from firth.utils.figures import Heatmap, WeightedText

STRONG = 0.64  # from this fraction on, text is in the opposite brightness (contrast 4.5)
LONG_NAME = 4  # characters; longer names of columns without texts are written upwards


def heatmap(figure: Heatmap) -> str:
    """Draw a table with coloured cells; wide ones scroll below the names of their rows."""
    rows = "".join(_row(figure, row) for row in range(len(figure.rows)))
    upright = not figure.texts and max(map(len, figure.columns)) > LONG_NAME
    kind = "heatmap" + (" plain" if not figure.texts else "") + (" upright" if upright else "")
    return (
        f'<div class="scroll"><table class="{kind}" data-cells aria-label="{escape(figure.title)}">'
        f"<thead>{_head(figure)}</thead><tbody>{rows}</tbody></table></div>"
        f"{colour_scale(figure.low, figure.high)}"
    )


def _head(figure: Heatmap) -> str:
    names = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in figure.columns)
    title = (
        f'<tr><td></td><th class="title" colspan="{len(figure.columns)}">'
        f"<span>{escape(figure.column_title)}</span></th></tr>"
        if figure.column_title
        else ""
    )
    return f'{title}<tr><td class="title">{escape(figure.row_title)}</td>{names}</tr>'


def _row(figure: Heatmap, row: int) -> str:
    cells = "".join(_cell(figure, row, column) for column in range(len(figure.columns)))
    return f'<tr><th scope="row">{escape(figure.rows[row])}</th>{cells}</tr>'


def _cell(figure: Heatmap, row: int, column: int) -> str:
    value = figure.values[row][column]
    if math.isnan(value):
        return "<td></td>"
    text = figure.texts[row][column] if figure.texts else ""
    detail = figure.details[row][column] if figure.details else f"{value:.3g}"
    tip = escape(f"{figure.rows[row]}, {figure.columns[column]}\n{detail}")
    fraction = cell_fraction(value, figure.low, figure.high)
    return f'<td {_coloured(fraction)} title="{tip}">{escape(text)}</td>'


def cell_fraction(value: float, low: float, high: float) -> float:
    """Return the fraction of colour in a cell, negative for the second of two colours.

    >>> cell_fraction(3, 0, 4), cell_fraction(-0.5, -1, 2), cell_fraction(9, 0, 4)
    (0.75, -0.25, 1.0)
    """
    if low < 0 < high:
        fraction = value / max(-low, high)
        return max(-1.0, min(1.0, fraction))
    return max(0.0, min(1.0, (value - low) / (high - low or 1.0)))


def _coloured(fraction: float) -> str:
    """Return the attributes of an element with a coloured background."""
    kinds = "heat" + " negative" * (fraction < 0) + " dark" * (abs(fraction) > STRONG)
    return f'class="{kinds}" style="--v:{abs(fraction):.3g}"'


def colour_scale(low: float, high: float) -> str:
    """Draw the colours of a range of numbers."""
    kind = "two" if low < 0 < high else "one"
    if kind == "two":
        high = max(-low, high)
        low = -high
    return (
        f'<div class="scale"><span>{low:.3g}</span><i class="{kind}"></i>'
        f"<span>{high:.3g}</span></div>"
    )


def weighted_text(figure: WeightedText) -> str:
    """Draw a text with coloured parts, each with its number for the pointer."""
    largest = max((abs(piece.weight) for piece in figure.pieces), default=0.0)
    pieces = "<wbr>".join(  # lines break between parts
        f'<span {_coloured(piece.weight / (largest or 1.0))} title="{piece.weight:+.3g}">'
        f"{escape(piece.text)}</span>"
        for piece in figure.pieces
    )
    lowest = -largest if any(piece.weight < 0 for piece in figure.pieces) else 0.0
    scale = colour_scale(lowest, largest) if largest else ""
    return f'<p class="marked weighted" data-cells>{pieces}</p>{scale}'
