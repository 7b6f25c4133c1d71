"""Plots of attention masks and loss curves, as PNG files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firth.utils.files import atomic_file
from firth.utils.rng import Bools

# The first that are installed are used; a character is drawn in the first font that has it.
FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "PingFang SC",
    "Hiragino Sans", "Microsoft YaHei", "Malgun Gothic", "Noto Sans", "Noto Sans Arabic",
    "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Symbols 2",
)  # fmt: skip
# The colours of the page in light mode (html_page.css).
COLOURS = (
    "#2f6f8f", "#c0703a", "#5b8a4c", "#8a5a94", "#a88a16", "#1f9e8f", "#5c6470", "#c2506e",
)  # fmt: skip


@contextmanager
def plain_text() -> Iterator[None]:
    """Draw texts as they are: no formulas between dollar signs, no warning about missing glyphs."""
    import matplotlib
    from matplotlib import font_manager, rcsetup

    installed = set(font_manager.get_font_names())
    fonts = [font for font in FONTS if font in installed]
    settings: dict[Any, Any] = {
        "text.parse_math": False,
        "axes.unicode_minus": False,
        "font.family": fonts,
        "axes.prop_cycle": rcsetup.cycler(color=COLOURS),
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"(?s).*Glyph .* missing from font")
        warnings.filterwarnings("ignore", message=".*not applied because")  # constrained layout
        yield


def plot_attention_masks(path: Path, tokens: Sequence[str], masks: Mapping[str, Bools]) -> None:
    """Plot attention masks, one panel each; filled squares are attended to."""
    with plain_text(), atomic_file(path) as file:
        _draw_masks(tokens, masks).savefig(file, format="png")


def _draw_masks(tokens: Sequence[str], masks: Mapping[str, Bools]) -> Any:
    from matplotlib.figure import Figure

    size = 0.5 + 0.33 * len(tokens) * len(masks), 0.33 * len(tokens) + 1.4
    figure = Figure(figsize=size, layout="constrained")
    for number, (title, visible) in enumerate(masks.items(), 1):
        axes = figure.add_subplot(1, len(masks), number)
        axes.pcolormesh(visible, cmap="Blues", vmin=-0.2, vmax=1.4, edgecolors="white", linewidth=1)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.set_title(title)
        ticks = [i + 0.5 for i in range(len(tokens))]
        axes.set_xticks(ticks, tokens, rotation=90, fontsize=8)
        axes.set_yticks(ticks, tokens if number == 1 else [], fontsize=8)
        axes.tick_params(length=0)
    figure.supxlabel("key position", fontsize=9)
    figure.supylabel("query position", fontsize=9)
    return figure


def plot_loss(
    path: Path,
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    unigram_loss: float = 0.0,
    metric: str = "loss",
) -> None:
    """Plot training loss (faint) and validation loss (strong) of runs from their metrics.

    `unigram_loss` adds a line for the loss of predicting tokens by their frequency alone; `metric`
    selects one loss where a run logs several.
    """
    with atomic_file(path) as file:
        _draw_loss(runs, unigram_loss, metric).savefig(file, format="png")


def _draw_loss(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], unigram_loss: float, metric: str
) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, lines) in enumerate(runs.items()):
        colour = f"C{number}"
        train, valid = (_points(lines, kind, metric) for kind in ("step", "validation"))
        axes.plot(*train, color=colour, alpha=0.35, label=f"{name}: training")
        axes.plot(*valid, "o-", color=colour, markersize=4, label=f"{name}: validation")
    if unigram_loss:
        axes.axhline(unigram_loss, color="grey", linestyle=":", label="unigram baseline")
    axes.set_xlabel("million tokens")
    axes.set_ylabel("loss" if metric == "loss" else f"loss ({metric})")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _points(
    lines: Sequence[Mapping[str, Any]], kind: str, metric: str
) -> tuple[list[float], list[float]]:
    """Return million tokens and losses of the lines of one kind."""
    chosen = [line for line in lines if line["kind"] == kind and metric in line]
    return [line["tokens"] / 1e6 for line in chosen], [line[metric] for line in chosen]
