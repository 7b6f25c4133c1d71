"""Pictures, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.draws import Bools
from firth.files import atomic_file


def attention_patterns(path: Path, words: Sequence[str], patterns: Mapping[str, Bools]) -> None:
    """Draw who may see whom, one panel for each pattern; a filled square may be attended to."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.5 + 0.33 * len(words) * len(patterns), 0.33 * len(words) + 1.4))
    figure.set_layout_engine("constrained")
    for number, (title, visible) in enumerate(patterns.items(), 1):
        axes = figure.add_subplot(1, len(patterns), number)
        axes.pcolormesh(visible, cmap="Blues", vmin=-0.2, vmax=1.4, edgecolors="white", linewidth=1)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.set_title(title)
        ticks = [i + 0.5 for i in range(len(words))]
        axes.set_xticks(ticks, words, rotation=90, fontsize=8)
        axes.set_yticks(ticks, words if number == 1 else [], fontsize=8)
        axes.tick_params(length=0)
    figure.supxlabel("may be seen", fontsize=9)
    figure.supylabel("sees", fontsize=9)
    with atomic_file(path) as file:
        FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]


def loss_curve(
    path: Path,
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    guess: float = 0.0,
    of: str = "loss",
) -> None:
    """Draw how the loss of runs fell, from their metrics: learned text faint, unseen text strong.

    `guess` draws the line of guessing tokens by their frequency alone; `of` names one loss where
    a run has several.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    for number, (name, lines) in enumerate(runs.items()):
        colour = f"C{number}"
        learned, unseen = (_points(lines, kind, of) for kind in ("step", "validation"))
        axes.plot(*learned, color=colour, alpha=0.35, label=f"{name}: text it learns from")
        axes.plot(*unseen, "o-", color=colour, markersize=4, label=f"{name}: text it never saw")
    if guess:
        axes.axhline(guess, color="grey", linestyle=":", label="guessing by frequency")
    axes.set_xlabel("million tokens")
    axes.set_ylabel("loss" if of == "loss" else f"loss ({of})")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    with atomic_file(path) as file:
        FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]


def _points(
    lines: Sequence[Mapping[str, Any]], kind: str, of: str
) -> tuple[list[float], list[float]]:
    """Million tokens and losses of one kind of line."""
    chosen = [line for line in lines if line["kind"] == kind and of in line]
    return [line["tokens"] / 1e6 for line in chosen], [line[of] for line in chosen]
