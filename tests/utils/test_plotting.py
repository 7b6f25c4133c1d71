"""Loss curves: the points and labels of the figure, and the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.image import imread

from firth.utils.plotting import plot_loss

RUN: list[dict[str, Any]] = [
    {"kind": "step", "tokens": 1_000_000, "loss": 4.0},
    {"kind": "validation", "tokens": 1_000_000, "loss": 3.5},
    {"kind": "step", "tokens": 2_000_000, "loss": 3.0, "masked": 9.0},
]


def test_points_and_labels(draw_loss: Callable[..., Any]) -> None:
    [axes] = draw_loss({"bert": RUN}, 6.0, "loss").axes
    points = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert points["bert: training"] == [[1.0, 4.0], [2.0, 3.0]]
    assert points["bert: validation"] == [[1.0, 3.5]]
    assert [y for _, y in points["unigram baseline"]] == [6.0, 6.0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("million tokens", "loss")
    [axes] = draw_loss({"bert": RUN}, 0.0, "masked").axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[2.0, 9.0]], []]
    assert "masked" in axes.get_ylabel()


def test_the_file(draw_loss: Callable[..., Any], tmp_path: Path) -> None:
    plot_loss(tmp_path / "loss.png", {"a": RUN, "b": RUN})
    image = imread(tmp_path / "loss.png")
    assert image.shape[:2] == (400, 700)
    assert image.std() > 0.01
