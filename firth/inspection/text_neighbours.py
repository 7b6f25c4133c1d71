"""The nearest words of each word of a text, by the cosines of word vectors or token embeddings.

n  words of the text     W  size of a vector
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.word_lookup import look_up, word_id
from firth.inspection.layer_vectors import (
    SpannedTokens,
    Vectors,
    encode_text,
    layer_embedder,
    static_vectors,
)
from firth.inspection.word_neighbours import TOP, VocabularyWord, nearest_in_vocabulary
from firth.model import Model
from firth.models.static_vectors import StaticVectors
from firth.tokenizers.display import display_tokens
from firth.utils.figures import DataTable, Figure, Paragraph

MAX_WORDS = 40  # of a text


class WordRow(NamedTuple):
    """A word, and the words with the most similar vectors."""

    word: str
    nearest: tuple[VocabularyWord, ...]


@dataclass(frozen=True)
class TextNeighbours:
    """The nearest words of the words of a text."""

    rows: tuple[WordRow, ...]
    unknown: tuple[str, ...]  # words without a vector
    is_static: bool  # whether these vectors are all that the model has

    @property
    def notes(self) -> tuple[str, ...]:
        """What the table does not say."""
        static = "Word vectors: a word has the same vector in every text, without attention."
        rows = "The rows of the embedding matrix, before the first layer."
        unknown = [f"Not in the vocabulary: {', '.join(self.unknown)}."] if self.unknown else []
        return (static if self.is_static else rows, *unknown)

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        words = [
            {"word": row.word, "nearest": [near._asdict() for near in row.nearest]}
            for row in self.rows
        ]
        return {"words": words, "unknown": list(self.unknown), "notes": list(self.notes)}

    def figures(self) -> tuple[Figure, ...]:
        """Return the table."""
        cells = tuple(
            (row.word, ", ".join(f"{token} {cosine:.2f}" for token, cosine in row.nearest))
            for row in self.rows
        )
        table = DataTable("Nearest words", ("word", "nearest words"), cells, texts=True)
        return (*map(Paragraph, self.notes), *([table] if cells else []))


def text_neighbours(model: Model, text: str, top: int = TOP) -> TextNeighbours:
    """Find the nearest words of the first distinct words of a text."""
    embedder = layer_embedder(model)
    one, is_static = encode_text(embedder, text), isinstance(embedder.network, StaticVectors)
    words, ids, vectors = (_words if is_static else _tokens)(embedder, one)
    nearest = nearest_in_vocabulary(embedder, vectors, ids, top) if words else ()
    rows = tuple(WordRow(*row) for row in zip(words, nearest, strict=True))
    known = {row.word for row in rows}
    spelled = [one.text[slice(*one.spans[i])] for i in one.tokens]
    unknown = tuple(dict.fromkeys(word for word in spelled if word not in known))
    return TextNeighbours(rows, unknown[:MAX_WORDS] if is_static else (), is_static)


Rows = tuple[list[str], Sequence[Sequence[int]], Vectors]  # words, their own ids, their vectors


def _words(embedder: Embedder, one: SpannedTokens) -> Rows:
    """Look up the words of a text; those without a vector are left out."""
    assert isinstance(embedder.network, StaticVectors)
    spelled = dict.fromkeys(one.text[slice(*one.spans[i])] for i in one.tokens)
    found = look_up(embedder, list(spelled))
    known = [i for i, has_vector in enumerate(found.known) if has_vector][:MAX_WORDS]
    words = [list(spelled)[i] for i in known]
    forms = [(word, word.lower()) for word in words]
    ids = [
        [
            id
            for form in both
            if (id := word_id(embedder.network, embedder.tokenizer, form)) is not None
        ]
        for both in forms
    ]
    return words, ids, found.vectors[known]


def _tokens(embedder: Embedder, one: SpannedTokens) -> Rows:
    """Look up the token embeddings of a text."""
    ids = [[id] for id in dict.fromkeys(one.ids[i] for i in one.tokens)][:MAX_WORDS]
    words = display_tokens(embedder.tokenizer, [id for [id] in ids])
    return words, ids, static_vectors(embedder, ids)
