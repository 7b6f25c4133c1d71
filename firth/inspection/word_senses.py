"""The vectors of one word in several sentences: static, and in context at every layer.

Word vectors such as those of word2vec give *bank* one vector; a contextual model gives each
occurrence its own (Peters et al. 2018). How much they differ is read against the cosine of random
words of the same texts, since all vectors of a layer may point in one direction (Ethayarajh 2019).

n  occurrences     L  layers     W  hidden size
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firth.data.memory import Data
from firth.inference.embedding.embedder import Embedder
from firth.inspection.layer_vectors import (
    Span,
    SpannedTokens,
    Vectors,
    encode_text,
    layer_embedder,
    layer_means,
    static_vectors,
)
from firth.inspection.similarity import anisotropy, cosines, project_pca
from firth.inspection.word_neighbours import (
    TOP,
    CorpusNeighbours,
    VocabularyWord,
    context_of,
    find_words,
    name_of,
    nearest_in_corpus,
    nearest_in_vocabulary,
)
from firth.model import Model
from firth.tokenizers.display import display_tokens
from firth.utils.errors import UsageError
from firth.utils.figures import (
    DataTable,
    Figure,
    Heatmap,
    LineChart,
    Paragraph,
    Point,
    ScatterPlot,
    ScatterPoint,
    Tabs,
)
from firth.utils.rng import Floats

MAX_OCCURRENCES = 40  # rows of a table of cosines
MAX_GROUPS = 8  # colours of a picture
MAX_CELL_TEXTS = 12  # rows up to which the cells of a table of cosines have their numbers


@dataclass(frozen=True)
class WordOccurrence:
    """A word in a text."""

    text: int  # number of the text, counted from 1
    span: Span  # its characters
    word: str  # as the text writes it
    name: str  # with one word before and one after it
    context: str  # with some more words
    ids: tuple[int, ...]
    pieces: tuple[str, ...]  # its tokens as readable text

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        start, end = self.span
        return {
            "text": self.text,
            "start": start,
            "end": end,
            "word": self.word,
            "context": self.context,
            "pieces": list(self.pieces),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class WordSenses:
    """The vectors of a word in several texts; layer 0 is the output of the embedding layer."""

    word: str
    texts: tuple[str, ...]
    occurrences: tuple[WordOccurrence, ...]
    static: Vectors  # (n, E) mean of the rows of the embedding matrix
    vectors: Vectors  # (L + 1, n, W)
    random_cosines: tuple[float, ...]  # (L + 1,) mean cosine of random words of the texts
    vocabulary: tuple[tuple[VocabularyWord, ...], ...]  # (n,) nearest tokens of the static vectors
    neighbours: CorpusNeighbours | None = None
    notes: tuple[str, ...] = ()

    def cosines(self, layer: int | None = None) -> Floats:
        """Compute the cosines between all occurrences at a layer; None: static vectors."""
        vectors = self.static if layer is None else self.vectors[layer]
        return cosines(vectors, vectors)  # (n, n)

    @property
    def mean_cosines(self) -> tuple[float, ...]:
        """The mean cosine between two occurrences at each layer."""
        return tuple(_mean_of_pairs(self.cosines(layer)) for layer in range(len(self.vectors)))

    @property
    def summary(self) -> str:
        """One sentence with the numbers."""
        own, random, last = self.mean_cosines, self.random_cosines, len(self.vectors) - 1
        others = f" (random words: {random[0]:.2f} and {random[-1]:.2f})" if random else ""
        return (
            f"The vectors of the {len(self.occurrences)} occurrences of {self.word!r} have a mean "
            f"cosine of {own[0]:.2f} in layer 0 and of {own[-1]:.2f} in layer {last}{others}; "
            f"the static vectors have {_mean_of_pairs(self.cosines()):.2f}."
        )

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        layers = [
            {
                "layer": layer,
                "cosines": _rounded(self.cosines(layer)),
                "mean_cosine": round(mean, 6),
                "pca": _rounded(project_pca(self.vectors[layer])),
            }
            for layer, mean in enumerate(self.mean_cosines)
        ]
        nearest = [[{"token": t, "cosine": c} for t, c in words] for words in self.vocabulary]
        return {
            "word": self.word,
            "summary": self.summary,
            "texts": list(self.texts),
            "occurrences": [one.values() for one in self.occurrences],
            "static": {"cosines": _rounded(self.cosines()), "nearest_tokens": nearest},
            "layers": layers,
            "random_cosines": [round(cosine, 6) for cosine in self.random_cosines],
            "neighbours": None if self.neighbours is None else self.neighbours.values(),
            "notes": list(self.notes),
        }

    def figures(self) -> tuple[Figure, ...]:
        """Return the pictures and tables, one tab for each layer."""
        layers: list[int | None] = [None, *range(len(self.vectors))]
        names = ["static", *map(str, range(len(self.vectors)))]
        tabs = Tabs(
            f"{self.word!r} at each layer",
            tuple(names),
            tuple((self._table(layer), self._picture(layer)) for layer in layers),
            selected=len(layers) - 1,
        )
        tables = () if self.neighbours is None else (self._neighbour_table(self.neighbours),)
        notes = tuple(Paragraph(note) for note in self.notes)
        return (
            *(Paragraph(self.summary), *notes, self._line_chart(), tabs, *tables),
            self._vocabulary_table(),
        )

    def _line_chart(self) -> LineChart:
        lines = {
            f"occurrences of {self.word!r}": self.mean_cosines,
            "random words of the texts": self.random_cosines,
        }
        return LineChart(
            "How contextual are the vectors?",
            "layer (0: embeddings)",
            "mean cosine",
            {
                name: tuple(Point(layer, value) for layer, value in enumerate(values))
                for name, values in lines.items()
                if values
            },
            caption="Occurrences that are as different as random words have nothing in common; "
            "static vectors of one word are equal (cosine 1).",
        )

    def _names(self) -> list[str]:
        """Number the occurrences, each with the word before and after it."""
        return [f"{number} {one.name}" for number, one in enumerate(self.occurrences, 1)]

    def _table(self, layer: int | None) -> Heatmap:
        values, names = self.cosines(layer), self._names()
        shown = len(names) <= MAX_CELL_TEXTS
        return Heatmap(
            f"Cosine similarity, {_layer_name(layer)}",
            tuple(names),
            tuple(str(number) for number in range(1, len(names) + 1)),
            tuple(tuple(row) for row in _rounded(values)),
            texts=tuple(tuple(f"{x:.2f}" for x in row) for row in values) if shown else (),
            details=tuple(
                tuple(f"{a} · {b}: {x:.3f}" for b, x in zip(names, row, strict=True))
                for a, row in zip(names, values, strict=True)
            ),
            caption="" if layer is not None else self._static_caption(),
        )

    def _static_caption(self) -> str:
        spelled = dict.fromkeys(" ".join(one.pieces) for one in self.occurrences)
        if len(spelled) == 1:
            return "The row of the embedding matrix, which is the same in all sentences."
        return f"Spellings with other tokens have other vectors: {', '.join(spelled)}."

    def _picture(self, layer: int | None) -> ScatterPlot:
        vectors = self.static if layer is None else self.vectors[layer]
        names = self._names()
        few = len(names) <= MAX_GROUPS
        points = tuple(
            ScatterPoint(x, y, name if few else self.word, f"{name}: {self.texts[one.text - 1]}")
            for (x, y), name, one in zip(
                _rounded(project_pca(vectors)), names, self.occurrences, strict=True
            )
        )
        return ScatterPlot(f"PCA, {_layer_name(layer)}", points)

    def _neighbour_table(self, found: CorpusNeighbours) -> DataTable:
        rows = [
            ("" if rank else name, word.word, word.sentence, f"{word.cosine:.3f}")
            for name, words in zip(self._names(), found.nearest, strict=True)
            for rank, word in enumerate(words)
        ]
        return DataTable(
            f"Nearest words at layer {found.layer}, of {found.words:,} words in "
            f"{found.sentences:,} sentences{found.place}",
            ("occurrence", "nearest word", "in the sentence", "cosine"),
            tuple(rows),
            texts=True,
        )

    def _vocabulary_table(self) -> DataTable:
        rows = {
            " ".join(one.pieces): ", ".join(f"{token} {cosine:.2f}" for token, cosine in words)
            for one, words in zip(self.occurrences, self.vocabulary, strict=True)
        }
        return DataTable(
            "Nearest tokens of the vocabulary to the static vector",
            ("tokens", "nearest, with their cosine"),
            tuple(rows.items()),
            texts=True,
        )


def word_senses(
    model: Model,
    word: str,
    texts: Sequence[str],
    *,
    neighbours: Data | None = None,
    layer: int | None = None,
    top: int = TOP,
) -> WordSenses:
    """Compute the vectors of a word in each of several texts, at every layer.

    The word is found as a whole word in upper or lower case, without other inflections; each
    occurrence counts, and the vector of a word of several tokens is their mean. With `neighbours`,
    a file or list of texts, also find the `top` words of these texts with the most similar vectors
    at a `layer`, by default the middle one.
    """
    if not word.strip():
        raise UsageError("The word is empty: give a word that all texts contain.")
    embedder = layer_embedder(model)
    last = embedder.network.config.num_layers
    chosen = (last + 1) // 2 if layer is None else model.embedder(layer=layer).layers[0]
    encoded = [encode_text(embedder, text) for text in texts]
    every = _occurrences(embedder, word.strip(), encoded)
    occurrences = every[:MAX_OCCURRENCES]
    if len(occurrences) < 2:
        raise UsageError(
            f"{word!r} occurs once: give at least two texts with it, or one with it twice."
        )
    static = static_vectors(embedder, [one.ids for one in occurrences])
    vectors, random = _contextual(embedder, encoded, occurrences)
    found = None
    if neighbours is not None:
        layer_vectors = vectors[min(chosen, len(vectors) - 1)]
        found = nearest_in_corpus(embedder, layer_vectors, neighbours, chosen, texts=texts, top=top)
    return WordSenses(
        word=word.strip(),
        texts=tuple(texts),
        occurrences=tuple(occurrences),
        static=static,
        vectors=vectors,
        random_cosines=random,
        vocabulary=nearest_in_vocabulary(embedder, static, [o.ids for o in occurrences], top),
        neighbours=found,
        notes=tuple(_notes(embedder, encoded, every)),
    )


def _occurrences(
    embedder: Embedder, word: str, encoded: Sequence[SpannedTokens]
) -> list[WordOccurrence]:
    """Find a word in texts; raise an error for a text without it."""
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    found = []
    for number, one in enumerate(encoded, 1):
        spans = [match.span() for match in pattern.finditer(one.text)]
        seen = [span for span in spans if one.tokens_of(span)]
        if not seen:
            where = " in its first tokens, which fit into the model's context" if spans else ""
            raise UsageError(
                f"Text {number} does not contain the word {word!r}{where}: {one.text!r:.60}."
            )
        for span in seen:
            ids = tuple(one.ids[i] for i in one.tokens_of(span))
            pieces = tuple(display_tokens(embedder.tokenizer, ids))
            names = one.text[slice(*span)], name_of(one.text, span), context_of(one.text, span)
            found.append(WordOccurrence(number, span, *names, ids, pieces))
    return found


def _contextual(
    embedder: Embedder, encoded: Sequence[SpannedTokens], occurrences: Sequence[WordOccurrence]
) -> tuple[Vectors, tuple[float, ...]]:
    """Compute the vectors of the occurrences, and the mean cosine of random words, by layer.

    There are no random words if the texts have fewer than two other words.
    """
    groups, is_occurrence = list[list[list[int]]](), list[bool]()
    for number, one in enumerate(encoded, 1):
        own = [found.span for found in occurrences if found.text == number]
        same = occurrences[0].word.casefold()
        others = [s for s in find_words(one) if one.text[slice(*s)].casefold() != same]
        groups.append([one.tokens_of(span) for span in (*own, *others)])
        is_occurrence += [True] * len(own) + [False] * len(others)
    means = layer_means(embedder, [one.ids for one in encoded], groups)
    chosen = np.array(is_occurrence)
    random = tuple(map(anisotropy, means[:, ~chosen])) if sum(~chosen) > 1 else ()
    return means[:, chosen], random


def _notes(
    embedder: Embedder, encoded: Sequence[SpannedTokens], every: Sequence[WordOccurrence]
) -> list[str]:
    notes = []
    if cut := [str(number) for number, one in enumerate(encoded, 1) if one.cut]:
        notes.append(
            f"Longer than the {embedder.max_length:,} tokens of the model, and cut: text "
            f"{', '.join(cut)}."
        )
    occurrences = every[:MAX_OCCURRENCES]
    if len(occurrences) < len(every):
        notes.append(
            f"Only the first {len(occurrences)} of {len(every):,} occurrences are compared."
        )
    if not embedder.network.config.has_encoder:
        notes.append("A decoder attends to the left: text after the word changes no vector of it.")
        first = [number for number, one in enumerate(occurrences, 1) if one.span[0] == 0]
        notes += [f"Occurrence {number} begins its text." for number in first]
    if any(embedder.tokenizer.unknown_id in one.ids for one in occurrences):
        notes.append("A part of the word is not in the vocabulary: its token is the unknown token.")
    return notes


def _mean_of_pairs(values: Floats) -> float:
    return float(values[np.triu_indices(len(values), 1)].mean())


def _layer_name(layer: int | None) -> str:
    if layer is None:
        return "static embedding"
    return "layer 0 (embeddings with positions)" if layer == 0 else f"layer {layer}"


def _rounded(values: Floats) -> list[list[float]]:
    return [[round(float(x), 6) for x in row] for row in values]
