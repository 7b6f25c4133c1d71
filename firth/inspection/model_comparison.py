"""Compare the representations of two models on one file of texts, layer by layer.

A text is represented by the mean vector of its tokens (without special tokens and the first token
of a decoder); an encoder-decoder by its encoder. The models may have other sizes, numbers of
layers, tokenizers and architectures: all that they share are the texts.

n  texts     L  layers     W  hidden size
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from firth.data.cleaning import is_invisible
from firth.data.memory import Data, as_source
from firth.inspection.comparison_results import ComparedModel, LayerPictures, ModelComparison
from firth.inspection.layer_probes import LayerProbes, probe_layers
from firth.inspection.layer_vectors import Vectors, encode_text, layer_embedder, layer_means
from firth.inspection.similarity import (
    anisotropy,
    cka_table,
    neighbour_agreement,
    project_pca,
    project_tsne,
)
from firth.metrics.bootstrap import Metric, estimate
from firth.model import Model
from firth.tasks.readers.columns import Columns, TaskFile, good_examples
from firth.tasks.readers.examples import LabelledExample
from firth.tasks.readers.subsampling import input_hash, stratified_sample
from firth.tasks.readers.table_files import read_labelled
from firth.tokenizers.counting import Progress
from firth.utils.bad_rows import SKIPPED, BadRows
from firth.utils.errors import InputError, UsageError
from firth.utils.rng import Floats, Longs, derive_keys

LIMIT, MIN_TEXTS, MAX_TEXTS = 500, 10, 2000
MAX_LABELS = 50
MAX_POINTS = 250  # of a picture: t-SNE takes about a second for them
MAX_PICTURES = 13  # layers with pictures: all of a model of 12 layers, evenly spaced ones of others
SHUFFLE = 0x5AFF  # random stream


def compare_models(
    a: Model,
    b: Model,
    data: Data,
    *,
    limit: int = LIMIT,
    seed: int = 0,
    columns: Columns | None = None,
    format: str | None = None,
    progress: Progress = lambda what, done, total: None,
) -> ModelComparison:
    """Compare two models on a file of texts with labels, or of texts alone.

    At most `limit` different texts are used, with the proportions of the labels. Bad rows are
    skipped. `columns` names the columns of texts and labels: {"text": …, "label": …}.
    """
    if not MIN_TEXTS <= limit <= MAX_TEXTS:
        raise UsageError(f"The limit is from {MIN_TEXTS} to {MAX_TEXTS:,} texts, not {limit:,}.")
    file = TaskFile(
        as_source(data, "data", "text, label"), format, columns or {}, "optional", allow_empty=True
    )
    sample = read_sample(file, limit, seed)
    names, notes = _names(a, b), list(sample.notes)
    vectors = []
    for name, model in zip(names, (a, b), strict=True):
        progress(f"hidden states of {name}", 0, len(sample.texts))
        found, cut = mean_vectors(model, sample.texts)
        vectors.append(found)
        notes += [f"{cut:,} texts are longer than the context of {name}, and cut."] if cut else []
    probes = _probes(vectors, sample.labels, seed, progress) if sample.labels else []
    models = [
        ComparedModel(
            name=name,
            vectors=found,
            anisotropy=tuple(anisotropy(layer, seed=seed) for layer in found),
            probes=probes[i] if probes else None,
        )
        for i, (name, found) in enumerate(zip(names, vectors, strict=True))
    ]
    first, second = vectors
    pictured = np.array(_stratified(sample.labels, len(sample.texts), MAX_POINTS, seed))
    return ModelComparison(
        source=str(file.path),
        texts=sample.texts,
        labels=sample.labels,
        models=(models[0], models[1]),
        cka=cka_table(first, second),
        own_cka=(cka_table(first, first), cka_table(second, second)),
        chance_cka=float(cka_table(first, second, _shuffled(len(sample.texts), seed)).mean()),
        agreement=tuple(
            (i, j, neighbour_agreement(first[i], second[j]))
            for i, j in _aligned(len(first) - 1, len(second) - 1)
        ),
        pictured=pictured,
        pictures=tuple(_pictures(vectors, pictured, seed, progress)),
        difference=_difference(*probes) if probes else None,
        notes=tuple(notes),
    )


# ---- texts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextSample:
    """Texts, their labels if they have any, and notes about them."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]  # one per text; (): none
    notes: tuple[str, ...]


def read_sample(file: TaskFile, limit: int, seed: int) -> TextSample:
    """Read at most `limit` different texts, with the proportions of their labels."""
    bad = BadRows(SKIPPED)
    with bad.explaining():
        read = good_examples(partial(read_labelled, pair=False), replace(file, bad=bad))
        rows = [row for row in read if not is_invisible(row.text)]
        different = list({input_hash(row): row for row in rows}.values())
        examples, labels, notes = _labelled(different, file)
    if len(different) < len(rows):
        notes.append(f"{len(rows) - len(different):,} repeated texts are left out.")
    if len(examples) > limit:
        notes.append(f"A sample of {limit:,} of the {len(examples):,} texts is compared.")
    chosen = _stratified(labels, len(examples), limit, seed)
    return TextSample(
        tuple(examples[i].text for i in chosen),
        tuple(labels[i] for i in chosen) if labels else (),
        (*notes, *bad.notes[-1:]),
    )


def _labelled(
    examples: Sequence[LabelledExample], file: TaskFile
) -> tuple[Sequence[LabelledExample], list[str], list[str]]:
    """Return the texts to compare, their labels and notes; no labels if they cannot be used."""
    found = [one for one in examples if one.label is not None]
    names, notes = {one.label for one in found}, []
    without = "so there are no linear probes, and pictures have one colour."
    if not found:
        notes.append(f"The texts have no labels, {without}")
    elif any(isinstance(name, tuple) for name in names):
        notes.append(f"The texts have several labels each, {without}")
    elif len(names) > MAX_LABELS:
        notes.append(f"There are {len(names):,} labels, more than {MAX_LABELS}, {without}")
    elif len(names) == 1:
        raise InputError(
            f"All texts of {file.path} have the label {found[0].label!r}: give texts of at least "
            "two labels, or without labels."
        )
    elif len(found) < len(examples):
        notes.append(f"{len(examples) - len(found):,} texts without a label are left out.")
    used = examples if notes and notes[0].endswith(without) else found
    if len(used) < MIN_TEXTS:
        raise InputError(
            f"{file.path} has {len(used):,} different texts: a comparison needs at least "
            f"{MIN_TEXTS}."
        )
    return used, [] if used is examples else [str(one.label) for one in found], notes


def _stratified(labels: Sequence[str], size: int, most: int, seed: int) -> list[int]:
    return stratified_sample(labels or [None] * size, count=most, seed=seed)[0]


# ---- vectors ------------------------------------------------------------------------------------


def mean_vectors(model: Model, texts: Sequence[str]) -> tuple[Vectors, int]:
    """Compute the mean vector of each text at every layer, and count the texts that were cut."""
    embedder = layer_embedder(model)
    encoded = [encode_text(embedder, text) for text in texts]
    for one in encoded:
        if not one.ids:
            raise InputError(f"A text has no tokens for {model!r}: {one.text!r:.60}; remove it.")
    ids = [one.ids for one in encoded]
    vectors = layer_means(embedder, ids, [[one.tokens] for one in encoded])
    return vectors, sum(one.cut for one in encoded)  # (L + 1, n, W)


def _names(a: Model, b: Model) -> tuple[str, str]:
    """Return short names of the models: the last parts of a path, unless they are the same."""
    full = [str(model.source or model.path or type(model.network).__name__) for model in (a, b)]
    short = ["/".join(Path(name).parts[-2:]) for name in full]
    first, second = short if short[0] != short[1] else full
    return (first, second) if first != second else (f"{first} (first)", f"{second} (second)")


def _aligned(first: int, second: int) -> list[tuple[int, int]]:
    """Pair the layers of the deeper model with those of the other at the same relative depth.

    >>> _aligned(4, 2)
    [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2)]
    """
    deep = max(first, second, 1)
    return [
        (round(i * first / deep), round(i * second / deep)) for i in range(max(first, second) + 1)
    ]


def _shuffled(size: int, seed: int) -> Longs:
    return derive_keys(derive_keys(seed, SHUFFLE), np.arange(size)).argsort()


def _probes(
    vectors: Sequence[Vectors], labels: Sequence[str], seed: int, progress: Progress
) -> list[LayerProbes]:
    """Probe the layers of both models with the same folds."""
    total, numbers = sum(map(len, vectors)), count(1)
    return [
        probe_layers(
            layers,
            labels,
            seed=seed,
            done=lambda: progress("linear probes of layers", next(numbers), total),
        )
        for layers in vectors
    ]


def _difference(a: LayerProbes, b: LayerProbes) -> Metric:
    """Estimate the difference in accuracy; the bootstrap is paired, as both predict each text."""
    gain = a.chosen - b.chosen
    both = estimate(lambda weights: {"difference": weights @ gain / len(gain)}, len(gain))
    return both["difference"]


def _pictures(
    vectors: Sequence[Vectors], pictured: Longs, seed: int, progress: Progress
) -> Iterator[LayerPictures]:
    """Project the pictured texts to two dimensions at every layer, or at evenly spaced ones."""
    pairs = _aligned(len(vectors[0]) - 1, len(vectors[1]) - 1)
    chosen = np.linspace(0, len(pairs) - 1, min(MAX_PICTURES, len(pairs))).round().astype(int)
    for number, place in enumerate(chosen, 1):
        first, second = pairs[place]
        layers = vectors[0][first, pictured], vectors[1][second, pictured]
        pca: list[Floats] = [project_pca(layer) for layer in layers]
        tsne = [project_tsne(layer, seed=seed) for layer in layers]
        yield LayerPictures(layers=(first, second), pca=(pca[0], pca[1]), tsne=(tsne[0], tsne[1]))
        progress("pictures of layers", number, len(chosen))
