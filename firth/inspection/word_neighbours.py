"""Nearest neighbours of word vectors: words of a corpus in their context, tokens of the vocabulary.

n  vectors     M  words of the corpus at a time     V  vocabulary size     W  hidden size
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from firth.data.input_files import InputFile, single_input_file
from firth.data.memory import Data, as_source, is_in_memory
from firth.data.readers import ReadOptions
from firth.data.sentences import sentence_starts
from firth.inference.embedding.embedder import Embedder
from firth.inspection.layer_vectors import (
    Span,
    SpannedTokens,
    Vectors,
    encode_text,
    input_embeddings,
    layer_means,
)
from firth.inspection.similarity import cosines
from firth.tokenizers.display import display_tokens
from firth.utils.errors import InputError
from firth.utils.rng import Floats, Longs

TOP = 5  # neighbours
MAX_WORDS = 20_000  # read of a corpus
CHUNK = 64  # sentences whose vectors are in memory
TOKENS = 4096  # of the vocabulary, whose vectors are in memory
WORD = re.compile(r"\w+(?:['’-]\w+)*")
SHORT_CONTEXT, LONG_CONTEXT = 20, 60  # characters on each side of a word


class VocabularyWord(NamedTuple):
    """A token of the vocabulary and its cosine."""

    token: str
    cosine: float


@dataclass(frozen=True)
class CorpusWord:
    """A word of a corpus, its sentence and its cosine."""

    word: str
    sentence: str
    cosine: float


@dataclass(frozen=True, kw_only=True)
class CorpusNeighbours:
    """The nearest words of a corpus for each of several vectors."""

    source: str
    layer: int
    sentences: int
    words: int  # that were read
    complete: bool  # False: the corpus has more words
    nearest: tuple[tuple[CorpusWord, ...], ...]  # (n,) nearest first

    @property
    def place(self) -> str:
        """The corpus, for a title."""
        of = "" if is_in_memory(self.source) else f" of {self.source}"
        return of if self.complete else f"{of} (its beginning)"

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def name_of(text: str, span: Span) -> str:
    """Return a word with the word before and the word after it.

    >>> name_of("They sat on the bank of the river.", (16, 20)), name_of("bank", (0, 4))
    ('the bank of', 'bank')
    """
    start, end = span
    [before] = re.findall(r"\S*\s*\Z", text[max(0, start - SHORT_CONTEXT) : start])[:1]
    [after] = re.findall(r"\A\s*\S*", text[end : end + SHORT_CONTEXT])
    return " ".join(f"{before}{text[start:end]}{after}".split())


def context_of(text: str, span: Span, width: int = SHORT_CONTEXT) -> str:
    """Return a word in brackets with the words around it.

    >>> context_of("They sat on the bank of the river.", (16, 20), width=8)
    '… on the [bank] of the …'
    """
    start, end = span
    before, after = text[:start], text[end:]
    if len(before) > width:
        before = "… " + before[-width - 1 :].partition(" ")[2]
    if len(after) > width:
        after = after[: width + 1].rpartition(" ")[0] + " …"
    return " ".join(f"{before}[{text[start:end]}]{after}".split())


def find_words(one: SpannedTokens) -> list[Span]:
    """Find the words of a text that are in its tokens; not the first word of a decoder."""
    spans = (match.span() for match in WORD.finditer(one.text))
    return [span for span in spans if (of := one.tokens_of(span)) and one.is_text[of[0]]]


def nearest_in_vocabulary(
    embedder: Embedder, vectors: Vectors, ids: Sequence[Sequence[int]], top: int = TOP
) -> tuple[tuple[VocabularyWord, ...], ...]:
    """Find the tokens whose embeddings are most similar to vectors, other than their own `ids`."""
    tokenizer = embedder.tokenizer
    every = np.array(sorted(tokenizer.backend.get_vocab().values()))
    special = set(tokenizer.backend.get_added_tokens_decoder())
    found = []
    for row, own in zip(_vocabulary_cosines(embedder, vectors, every), ids, strict=True):
        skip = special | set(own)
        near = (i for i in np.argsort(-row, kind="stable") if int(every[i]) not in skip)
        chosen = list(islice(near, top))
        tokens = display_tokens(tokenizer, every[chosen].tolist())
        pairs = zip(tokens, row[chosen].tolist(), strict=True)
        found.append(tuple(VocabularyWord(token, round(cosine, 6)) for token, cosine in pairs))
    return tuple(found)


@torch.no_grad()
def _vocabulary_cosines(embedder: Embedder, vectors: Vectors, ids: Longs) -> Floats:
    """Compute the cosines of vectors with the embeddings of tokens."""  # (n, V)
    embeddings = input_embeddings(embedder)
    chunks = torch.from_numpy(ids).to(embedder.device).split(TOKENS)
    tables = (embeddings(chunk).float().cpu().numpy() for chunk in chunks)
    return np.concatenate([cosines(vectors, table) for table in tables], axis=1)


def nearest_in_corpus(
    embedder: Embedder,
    vectors: Vectors,
    corpus: Data,
    layer: int,
    *,
    texts: Sequence[str] = (),
    top: int = TOP,
    max_words: int = MAX_WORDS,
) -> CorpusNeighbours:
    """Find the words of a corpus with the most similar vectors at a layer.

    Each sentence is read on its own, until `max_words` words were read. Sentences that are part of
    `texts`, whose words the vectors belong to, are left out.
    """
    source = single_input_file(as_source(corpus, "neighbours"), ReadOptions())
    best: list[list[CorpusWord]] = [[] for _ in vectors]
    sentences, read, words = _sentences(source, texts), 0, 0
    while words < max_words and (chunk := list(islice(sentences, CHUNK))):
        found, near = _chunk_words(embedder, vectors, chunk, layer)
        best = [_merge(*pair, found, top) for pair in zip(best, near, strict=True)]
        read, words = read + len(chunk), words + len(found)
    if not words:
        raise InputError(f"{source.name} has no words to find neighbours in.")
    return CorpusNeighbours(
        source=source.name,
        layer=layer,
        sentences=read,
        words=words,
        complete=next(sentences, None) is None,
        nearest=tuple(map(tuple, best)),
    )


def _sentences(source: InputFile, texts: Sequence[str]) -> Iterator[str]:
    """Yield the sentences of a corpus that are not part of `texts`."""
    with source.open() as raw:
        for document in source.documents(raw, ReadOptions(), Counter()):
            starts = sentence_starts(document)
            for start, end in pairwise([*starts, len(document)]):
                sentence = document[start:end].strip()
                if WORD.search(sentence) and not any(sentence in text for text in texts):
                    yield sentence


def _chunk_words(
    embedder: Embedder, vectors: Vectors, sentences: Sequence[str], layer: int
) -> tuple[list[tuple[str, str]], Floats]:
    """Return the words of sentences with their contexts, and the cosines of the vectors to them."""
    encoded = [encode_text(embedder, sentence) for sentence in sentences]
    spans = [find_words(one) for one in encoded]
    words = [
        (one.text[slice(*span)], context_of(one.text, span, LONG_CONTEXT))
        for one, of in zip(encoded, spans, strict=True)
        for span in of
    ]
    if not words:
        return [], np.zeros((len(vectors), 0))
    groups = [[e.tokens_of(span) for span in of] for e, of in zip(encoded, spans, strict=True)]
    [found] = layer_means(embedder, [one.ids for one in encoded], groups, layer)
    return words, cosines(vectors, found)  # (n, M)


def _merge(
    best: list[CorpusWord], near: Floats, words: Sequence[tuple[str, str]], top: int
) -> list[CorpusWord]:
    """Add the nearest of more words to the nearest so far; equal sentences count once."""
    order = np.argsort(-near, kind="stable")[: 4 * top]
    found = ((*words[i], round(float(near[i]), 6)) for i in order)
    more = [CorpusWord(word, sentence, cosine) for word, sentence, cosine in found]
    unique = {(one.word, one.sentence): one for one in [*more, *best]}
    return sorted(unique.values(), key=lambda one: -one.cosine)[:top]
