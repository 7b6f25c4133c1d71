"""The vectors of single words in any model: rows of a matrix, or the embeddings of short texts.

Word vectors are looked up by the exact word, then by the lower-cased word; an unknown word of
fastText is composed of its character n-grams. Any other network embeds the word as a text.

n  words     W  size of a vector
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.vectors import embed
from firth.models.static_vectors import StaticVectors
from firth.tokenizers.tokenizer import Tokenizer, encode_batch

Floats = NDArray[np.float32]
UNKNOWN, EXACT, LOWERCASED, COMPOSED = range(4)  # how a word was found


@dataclass(frozen=True, eq=False)
class FoundWords:
    """The vectors of words; those of unknown words are zero."""

    vectors: Floats  # (n, W)
    how: NDArray[np.int8]  # (n,) one of UNKNOWN, EXACT, LOWERCASED, COMPOSED

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which words have a vector."""
        return self.how != UNKNOWN


def find_ids(
    words: Sequence[str], id_of: Callable[[str], int | None]
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Look up words, then the lower-cased words; the id of an unknown word is -1.

    >>> ids, how = find_ids(["Sun", "sun", "Sum"], {"sun": 3}.get)
    >>> ids.tolist(), how.tolist()
    ([3, 3, -1], [2, 1, 0])
    """
    ids, how = np.full(len(words), -1, dtype=np.int64), np.zeros(len(words), dtype=np.int8)
    for row, word in enumerate(words):
        for kind, form in ((EXACT, word), (LOWERCASED, word.lower())):
            if (id := id_of(form)) is not None:
                ids[row], how[row] = id, kind
                break
    return ids, how


@torch.no_grad()
def look_up(embedder: Embedder, words: Sequence[str]) -> FoundWords:
    """Return the vectors of words in a model."""
    if isinstance(embedder.network, StaticVectors):
        return _rows(embedder.network, embedder.tokenizer, words)
    backend, unknown = embedder.tokenizer.backend, embedder.tokenizer.unknown_id
    encodings = encode_batch(backend, words)
    known = [any(id != unknown for id in encoding.ids) for encoding in encodings]
    vectors = embed(embedder, words)
    return FoundWords(vectors * np.array(known)[:, None], np.where(known, EXACT, UNKNOWN))


def _rows(network: StaticVectors, tokenizer: Tokenizer, words: Sequence[str]) -> FoundWords:
    """Look up words in a matrix; with n-grams, compose those that are not in it."""
    ids, how = find_ids(words, partial(word_id, network, tokenizer))
    weight = network.tokens.weight
    vectors = np.zeros((len(words), weight.shape[1]), dtype=np.float32)
    known = np.flatnonzero(how)
    vectors[known] = weight[torch.from_numpy(ids[known]).to(weight.device)].float().cpu().numpy()
    unknown = np.flatnonzero(how == UNKNOWN)
    if network.ngrams is not None and len(unknown):
        composed = network.compose([_normalized(tokenizer, words[row]) for row in unknown.tolist()])
        vectors[unknown] = composed.float().cpu().numpy()
        how[unknown] = COMPOSED
    return FoundWords(vectors, how)


def word_id(network: StaticVectors, tokenizer: Tokenizer, word: str) -> int | None:
    """Return the row of a word; None if it is unknown."""
    id = tokenizer.backend.token_to_id(word)
    return None if id == network.config.unknown_token_id else id


def _normalized(tokenizer: Tokenizer, word: str) -> str:
    """Return a word as the tokenizer changes it before it looks it up: mostly lower-cased."""
    normalizer = tokenizer.backend.normalizer
    return word if normalizer is None else normalizer.normalize_str(word)
