"""Self-contained HTML pages: one file without external scripts, styles, fonts or images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path

from firth.utils import attention_view, html_heatmap, svg, svg_scatter
from firth.utils.attention_view import AttentionView
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
    Piece,
    ScatterPlot,
    Tabs,
    WeightedText,
)
from firth.utils.files import atomic_file

ATTENTION = '<figure class="attention">'
STYLE = Path(__file__).with_name("html_page.css")
SCRIPT = Path(__file__).with_name("html_page.js")
POLICY = (  # a page may load nothing: its styles and scripts are in it
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Section:
    """A section of a page: what it shows, and the commands that do the same."""

    title: str
    lead: str = ""  # one sentence
    figures: Sequence[Figure] = ()
    commands: Sequence[str] = ()
    commands_title: str = "By hand"


@dataclass(frozen=True)
class Page:
    """A page: a title, an introduction and sections, which are numbered if `numbered`."""

    title: str
    lead: str
    sections: Sequence[Section] = field(default_factory=tuple)
    footer: str = ""
    numbers: Sequence[int] = ()  # of the sections; () for none
    wide: bool = False  # up to 1440 pixels, for large figures


def write_page(path: Path, page: Page) -> None:
    """Write a page as one file."""
    with atomic_file(path) as file:
        file.write(render_page(page).encode(errors="replace"))  # names of files may not be UTF-8


def render_page(page: Page) -> str:
    """Render a page with its style and script inline."""
    numbers = [*page.numbers, *[0] * len(page.sections)]
    pairs = list(zip(page.sections, numbers, strict=False))
    links = "".join(
        f'<a href="#section-{place}">{f"<b>{number}</b> " if number else ""}'
        f"{escape(section.title)}</a>"
        for place, (section, number) in enumerate(pairs, 1)
    )
    body = "\n".join(_section(place, *pair) for place, pair in enumerate(pairs, 1))
    style, script = attention_view.style_and_script() if ATTENTION in body else ("", "")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(page.title)}</title>\n"
        f"<style>\n{STYLE.read_text(encoding='utf-8')}{style}</style>\n</head>\n"
        f'<body class="{"wide" if page.wide else ""}">\n'
        f"<header><h1>{escape(page.title)}</h1><p>{escape(page.lead)}</p></header>\n"
        f'<nav aria-label="Sections">{links}</nav>\n<main>\n{body}\n</main>\n'
        f"<footer>{escape(page.footer)}</footer>\n"
        f"<script>\n{SCRIPT.read_text(encoding='utf-8')}{script}</script>\n</body>\n</html>\n"
    )


def _section(place: int, section: Section, number: int) -> str:
    badge = f'<span class="number">{number}</span>' if number else ""
    lead = f'<p class="lead">{escape(section.lead)}</p>' if section.lead else ""
    return (
        f'<section id="section-{place}"><h2>{badge}{escape(section.title)}</h2>{lead}'
        f"{render_figures(section.figures)}{_commands(section)}</section>"
    )


def _commands(section: Section) -> str:
    boxes = "".join(
        f'<div class="command"><code>{_unbroken(command)}</code></div>'
        for command in section.commands
    )
    return f"<h3>{escape(section.commands_title)}</h3>{boxes}" if boxes else ""


def _unbroken(command: str) -> str:
    """Put each word into an element, so that lines do not break after the hyphens of an option."""
    return " ".join(f"<span>{escape(word)}</span>" for word in command.split(" "))


def render_figures(figures: Iterable[Figure]) -> str:
    """Render figures as HTML; neighbours of one kind share a row where there is room.

    >>> render_figures([Paragraph("1 < 2")])
    '<p>1 &lt; 2</p>'
    """
    parts = []
    for kind, group in groupby(figures, type):
        shown = [RENDERERS[kind](figure) for figure in group]  # type: ignore[operator]
        several = len(shown) > 1 and kind in SIDE_BY_SIDE
        parts.append(f'<div class="row">{"".join(shown)}</div>' if several else "".join(shown))
    return "".join(parts)


def _figure(kind: str, title: str, content: str, caption: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    above = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<figure class="{kind}">{above}{content}{below}</figure>'


def _facts(facts: KeyNumbers) -> str:
    rows = "".join(
        f"<div><dt>{escape(row.value)}</dt><dd>{escape(row.meaning)}</dd></div>"
        for row in facts.rows
    )
    return f'<dl class="facts">{rows}</dl>'


def _paragraph(paragraph: Paragraph) -> str:
    kind = ' class="warning"' if paragraph.warning else ""
    return f"<p{kind}>{escape(paragraph.text)}</p>"


def _table(table: DataTable) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join(
        f"<tr>{''.join(_cell(cell, (i, j) in table.marked) for j, cell in enumerate(row))}</tr>"
        for i, row in enumerate(table.rows)
    )
    kind = "texts" if table.texts else "numbers"
    content = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    content = f'<div class="scroll">{content}</div>'
    if table.folded:
        summary = f"<summary>{escape(table.title)}</summary>"
        return _figure("table", "", f"<details>{summary}{content}</details>")
    return _figure("table", table.title, content)


def _cell(text: str, marked: bool) -> str:
    return f"<td>{f'<mark>{escape(text)}</mark>' if marked else escape(text)}</td>"


def _marked(marked: MarkedText) -> str:
    text = "".join(map(_piece, marked.pieces))
    return _figure("text", marked.title, f'<p class="marked">{text}</p>', marked.caption)


def _piece(piece: Piece) -> str:
    """Render a part of a text.

    >>> _piece(Piece("Paris", "b", "LOC"))
    '<mark class="m-b">Paris<small>LOC</small></mark>'
    """
    text = escape(piece.text)
    label = f"<small>{escape(piece.label)}</small>" if piece.label else ""
    mark = escape(piece.mark, quote=True)
    return f'<mark class="m-{mark}">{text}{label}</mark>' if piece.mark else f"{text}{label}"


def _bars(chart: BarChart) -> str:
    rows = "".join(_bar(bar, chart) for bar in chart.bars)
    return _figure("bars", chart.title, f"<table><tbody>{rows}</tbody></table>", chart.caption)


def _bar(bar: Bar, chart: BarChart) -> str:
    """Render a bar; its interval is a thin line over it."""
    interval, ends = "", ""
    if bar.low is not None and bar.high is not None:
        left, width = 100 * bar.low / chart.scale, 100 * (bar.high - bar.low) / chart.scale
        interval = f'<i style="left:{left:.1f}%;width:{width:.1f}%"></i>'
        ends = f" <small>({chart.shown(bar.low)} to {chart.shown(bar.high)})</small>"
    length = 100 * max(0.0, bar.value) / chart.scale
    return (
        f'<tr><th scope="row">{escape(bar.name)}</th><td class="track">'
        f'<b style="width:{length:.1f}%"></b>{interval}</td>'
        f"<td>{chart.shown(bar.value)}{ends}</td></tr>"
    )


def _lines(chart: LineChart) -> str:
    names = "".join(svg.legend_entry(number, name) for number, name in enumerate(chart.lines))
    legend = f'<div class="legend groups">{names}</div>' if len(chart.lines) > 1 else ""
    return _figure("chart", chart.title, legend + svg.line_chart(chart), chart.caption)


def _mask(mask: AttentionMask) -> str:
    return _figure("mask", mask.title, svg.attention_mask(mask), mask.caption)


def _attention(view: AttentionView) -> str:
    return _figure("attention", view.title, attention_view.attention_html(view), view.caption)


def _heatmap(figure: Heatmap) -> str:
    return _figure("heat-map", figure.title, html_heatmap.heatmap(figure), figure.caption)


def _scatter(plot: ScatterPlot) -> str:
    return _figure("scatter", plot.title, svg_scatter.scatter_plot(plot), plot.caption)


def _weighted(figure: WeightedText) -> str:
    return _figure("text", figure.title, html_heatmap.weighted_text(figure), figure.caption)


def _tabs(tabs: Tabs) -> str:
    """Render every group below its name; the page's script shows one of them at a time."""
    title = f"<h3>{escape(tabs.title)}</h3>" if tabs.title else ""
    panels = "".join(
        f'<div class="panel"><h4>{escape(name)}</h4>{render_figures(figures)}</div>'
        for name, figures in zip(tabs.names, tabs.figures, strict=True)
    )
    return f'<div class="tabs" data-selected="{tabs.selected}">{title}{panels}</div>'


RENDERERS = {
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
SIDE_BY_SIDE = (BarChart, LineChart, AttentionMask, ScatterPlot)
