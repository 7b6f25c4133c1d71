"""The result of a comparison of two models: numbers, one summary sentence, and figures.

n  texts     L  layers     W  hidden size
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firth.inspection.layer_probes import FOLDS, LayerProbes
from firth.inspection.layer_vectors import Vectors
from firth.inspection.similarity import NEIGHBOURS
from firth.metrics.bootstrap import Metric, to_json
from firth.utils.figures import (
    Figure,
    Heatmap,
    LineChart,
    Paragraph,
    Point,
    ScatterPlot,
    ScatterPoint,
    Tabs,
)
from firth.utils.rng import Floats, Longs

Lines = dict[str, Sequence[Metric]]
MAX_GROUPS = 8  # colours of a picture
FEW_TEXTS = " (the last layer, where these have too few texts for a cross-validation)"
MAX_CELL_TEXTS = 14  # columns up to which the cells of a table have their numbers


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedModel:
    """The representations of the texts by one model."""

    name: str
    vectors: Vectors  # (L + 1, n, W); layer 0 is the output of the embedding layer
    anisotropy: tuple[float, ...]  # (L + 1,)
    probes: LayerProbes | None = None  # None: texts without labels

    @property
    def num_layers(self) -> int:
        return len(self.vectors) - 1

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        layers: list[dict[str, Any]] = [
            {"layer": layer, "anisotropy": round(value, 6)}
            for layer, value in enumerate(self.anisotropy)
        ]
        if self.probes is None:
            return {"model": self.name, "layers": layers}
        for layer, accuracy in zip(layers, self.probes.accuracies, strict=True):
            layer["accuracy"] = to_json(accuracy)
        return {
            "model": self.name,
            "layers": layers,
            "accuracy": to_json(self.probes.accuracy),
            "chosen_layers": list(self.probes.chosen_layers),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerPictures:
    """Two-dimensional pictures of a layer of each model, one point per pictured text."""

    layers: tuple[int, int]
    pca: tuple[Floats, Floats]  # (points, 2) each
    tsne: tuple[Floats, Floats]

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        pca, tsne = ([one.round(4).tolist() for one in pair] for pair in (self.pca, self.tsne))
        return {"layers": list(self.layers), "pca": pca, "tsne": tsne}


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelComparison:
    """Two models on the same texts; layers are counted from 1, and layer 0 is the embeddings."""

    source: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]  # one per text; (): none
    models: tuple[ComparedModel, ComparedModel]
    cka: Floats  # (L + 1 of the first, L + 1 of the second)
    own_cka: tuple[Floats, Floats]  # between the layers of each model
    chance_cka: float  # mean if the texts of the second model are shuffled
    agreement: tuple[
        tuple[int, int, float], ...
    ]  # layers of equal relative depth, shared neighbours
    pictured: Longs  # (points,) indices of the texts
    pictures: tuple[LayerPictures, ...]
    difference: Metric | None = None  # of accuracies at the chosen layers, first minus second
    notes: tuple[str, ...] = ()

    @property
    def most_similar(self) -> tuple[int, int]:
        """The layers of the two models with the largest CKA."""
        first, second = np.unravel_index(int(self.cka.argmax()), self.cka.shape)
        return int(first), int(second)

    @property
    def summary(self) -> str:
        """One sentence with the numbers."""
        first, second = self.most_similar
        a, b = (model.name for model in self.models)
        alike = (
            f"layer {first} of {a} and layer {second} of {b} are most similar (linear CKA "
            f"{self.cka[first, second]:.2f}, by chance {self.chance_cka:.2f})"
        )
        verdict = self._verdict(self.difference) if self.difference is not None else "Of all layers"
        return f"{verdict}; {alike}." if self.labels else f"{verdict}, {alike}."

    def _verdict(self, difference: Metric) -> str:
        """Say which model separates the labels better, or that they do not differ significantly."""
        models, sign = self.models, 1
        if difference.value < 0:
            models, sign = models[::-1], -1
        ends = [sign * end for end in (difference.low, difference.high) if end is not None]
        ends = sorted(round(end, 3) + 0.0 for end in ends)  # no -0.000
        interval = f"95 % interval {ends[0]:.3f} to {ends[1]:.3f}" if ends else "no interval"
        scores = " and ".join(
            f"{model.probes.accuracy.value:.3f} for {model.name}"
            for model in models
            if model.probes
        )
        numbers = (
            f"accuracy {scores}, difference {abs(difference.value):.3f}, {interval}, "
            f"{len(self.texts):,} texts with {len(set(self.labels))} labels"
        )
        if ends and ends[0] > 0:
            better, worse = (model.name for model in models)
            return f"A linear probe of {better} is more accurate than one of {worse} ({numbers})"
        return f"The accuracies of the linear probes do not differ significantly ({numbers})"

    @property
    def majority(self) -> float:
        """The accuracy of always predicting the most frequent label."""
        return max(Counter(self.labels).values(), default=0) / max(1, len(self.labels))

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        a, b = self.own_cka
        tables = {"between": self.cka, "within_first": a, "within_second": b}
        agreement = [
            {"layers": [first, second], "agreement": round(value, 6)}
            for first, second, value in self.agreement
        ]
        return {
            "source": self.source,
            "n": len(self.texts),
            "labels": dict(sorted(Counter(self.labels).items())),
            "summary": self.summary,
            "models": [model.values() for model in self.models],
            "difference": None if self.difference is None else to_json(self.difference),
            "cka": {name: table.round(6).tolist() for name, table in tables.items()}
            | {"chance": round(self.chance_cka, 6)},
            "neighbour_agreement": agreement,
            "points": [
                {"text": self.texts[i], "label": self.labels[i] if self.labels else None}
                for i in self.pictured
            ],
            "pictures": [picture.values() for picture in self.pictures],
            "notes": list(self.notes),
        }

    def figures(self) -> tuple[Figure, ...]:
        """Return the charts, the tables of CKA, and the pictures with one tab for each layer."""
        charts = [self._probe_chart()] if self.labels else []
        charts += [self._anisotropy_chart(), self._agreement_chart()]
        return (Paragraph(self.summary), *charts, self._cka_tabs(), self._picture_tabs())

    def _line_chart(self, title: str, y_label: str, lines: Lines, caption: str) -> LineChart:
        """Return a chart over layers, or over relative depth if the models' depths differ."""
        same = self.models[0].num_layers == self.models[1].num_layers
        return LineChart(
            title,
            "layer (0: embeddings)" if same else "relative depth (0: embeddings, 1: last layer)",
            y_label,
            {
                name: tuple(
                    Point(i if same else i / max(1, len(line) - 1), one.value, one.low, one.high)
                    for i, one in enumerate(line)
                )
                for name, line in lines.items()
            },
            caption=caption,
        )

    def _probe_chart(self) -> LineChart:
        probed = [(model.name, model.probes) for model in self.models if model.probes]
        lines: Lines = {name: probes.accuracies for name, probes in probed}
        lines["most frequent label"] = self._constant(self.majority)
        chosen = " and ".join(
            f"{_listed(probes.chosen_layers)} of {name}" for name, probes in probed
        )
        few = "" if all(probes.selected for _, probes in probed) else FEW_TEXTS
        caption = (
            f"Accuracy of a linear classifier on the vectors of held-out texts ({FOLDS}-fold "
            "cross-validation, 95 % intervals). The "
            f"summary compares the layers that are best within the training folds{few}: {chosen}."
        )
        return self._line_chart("Linear probe of each layer", "accuracy", lines, caption)

    def _constant(self, value: float) -> list[Metric]:
        return _without_intervals([value] * max(self.cka.shape))

    def _anisotropy_chart(self) -> LineChart:
        lines: Lines = {model.name: _without_intervals(model.anisotropy) for model in self.models}
        caption = "0: the vectors of texts point in all directions; 1: all in the same one."
        return self._line_chart("Anisotropy", "mean cosine of random pairs", lines, caption)

    def _agreement_chart(self) -> LineChart:
        shared = _without_intervals([value for _, _, value in self.agreement])
        k = min(NEIGHBOURS, len(self.texts) - 1)
        caption = (
            f"The fraction of the {k} nearest texts that a text has in both models, at layers of "
            "equal relative depth."
        )
        chance = self._constant(k / (len(self.texts) - 1))
        lines: Lines = {"both models": shared, "by chance": chance}
        return self._line_chart("Nearest-neighbour agreement", "shared fraction", lines, caption)

    def _cka_tabs(self) -> Tabs:
        a, b = (model.name for model in self.models)
        meaning = "1: two layers represent the texts alike, but for rotation and scale"
        chance = f"{meaning}; {self.chance_cka:.2f} by chance, with shuffled texts."
        tables = (
            _cka_heatmap(a, b, self.cka, chance),
            _cka_heatmap(a, a, self.own_cka[0], ""),
            _cka_heatmap(b, b, self.own_cka[1], ""),
        )
        names = ("between the models", f"within {a}", f"within {b}")
        return Tabs("Linear CKA between layers", names, tuple((table,) for table in tables))

    def _picture_tabs(self) -> Tabs:
        a, b = (model.name for model in self.models)
        names = [_pair_name(*picture.layers) for picture in self.pictures]
        panels = tuple(
            tuple(
                self._plot(f"{method} of {name}, layer {layer}", points)
                for method, both in (("PCA", picture.pca), ("t-SNE", picture.tsne))
                for name, layer, points in zip((a, b), picture.layers, both, strict=True)
            )
            for picture in self.pictures
        )
        some = len(panels) < max(self.cka.shape)
        title = f"The texts at {len(panels)} of the layers" if some else "The texts at each layer"
        return Tabs(title, tuple(names), panels, selected=len(panels) - 1)

    def _plot(self, title: str, places: Floats) -> ScatterPlot:
        common = [label for label, _ in Counter(self.labels).most_common()]
        shown = set(common if len(common) <= MAX_GROUPS else common[: MAX_GROUPS - 1])
        groups = [(self.labels[i] if self.labels else "texts") for i in self.pictured]
        names = [group if group in shown or not self.labels else "other labels" for group in groups]
        points = (
            ScatterPoint(round(float(x), 4), round(float(y), 4), name, _short(self.texts[i]))
            for (x, y), i, name in zip(places, self.pictured, names, strict=True)
        )
        return ScatterPlot(title, tuple(points))


def _without_intervals(values: Sequence[float]) -> list[Metric]:
    return [Metric(value=value, low=None, high=None) for value in values]


def _cka_heatmap(row_title: str, column_title: str, table: Floats, caption: str) -> Heatmap:
    rows, columns = (tuple(map(str, range(size))) for size in table.shape)
    shown = max(table.shape) <= MAX_CELL_TEXTS
    return Heatmap(
        f"{row_title} (rows) and {column_title} (columns)",
        rows,
        columns,
        tuple(tuple(row) for row in table.round(4).tolist()),
        texts=tuple(tuple(f"{x:.2f}" for x in row) for row in table) if shown else (),
        details=tuple(
            tuple(f"layer {i}, layer {j}: {x:.3f}" for j, x in enumerate(row))
            for i, row in enumerate(table)
        ),
        row_title=f"layer of {row_title}",
        column_title=f"layer of {column_title}",
        caption=caption,
    )


def _pair_name(first: int, second: int) -> str:
    return str(first) if first == second else f"{first} and {second}"


def _listed(layers: Sequence[int]) -> str:
    """
    >>> _listed([5, 4, 4])
    'layer 4 (2 of 3 folds), 5 (1 of 3 folds)'
    """
    counts = Counter(layers).most_common()
    return "layer " + ", ".join(f"{layer} ({k} of {len(layers)} folds)" for layer, k in counts)


def _short(text: str, most: int = 100) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 2].rstrip() + " …"
