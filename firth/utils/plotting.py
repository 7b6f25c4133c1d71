"""Plots of attention masks and loss curves, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.utils.files import atomic_file
from firth.utils.rng import Bools


def plot_attention_masks(path: Path, tokens: Sequence[str], masks: Mapping[str, Bools]) -> None:
    """Plot attention masks, one panel each; filled squares are attended to."""
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
    with atomic_file(path) as file:
        figure.savefig(file, format="png")


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
    with atomic_file(path) as file:
        figure.savefig(file, format="png")


def _points(
    lines: Sequence[Mapping[str, Any]], kind: str, metric: str
) -> tuple[list[float], list[float]]:
    """Return million tokens and losses of the lines of one kind."""
    chosen = [line for line in lines if line["kind"] == kind and metric in line]
    return [line["tokens"] / 1e6 for line in chosen], [line[metric] for line in chosen]
