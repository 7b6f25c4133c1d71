"""A file of word vectors as a model: a network, and a tokenizer of its words.

If all words are lower case, texts are lower-cased. Unknown words have no vector: they are left out
of the mean vector of a text.

V  words     W  numbers of a vector
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers
import torch
from tokenizers import normalizers, pre_tokenizers

from firth.formats.word_vectors.reading import read_word_vectors
from firth.formats.word_vectors.word_vectors import WordVectors
from firth.models.static_vectors import StaticVectors
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import KINDS
from firth.utils.errors import MismatchError

LOGGER = logging.getLogger("firth")
UNKNOWN = "<unk>"
# For vocabularies with don't instead of do and n't.
WHOLE_WORDS = r"\d+(?:[.,]\d+)+\b|\w+(?:['’]\w+)*|[^\w\s]"


def read_static_vectors(
    path: Path, *, dtype: torch.dtype | None = None
) -> tuple[StaticVectors, Tokenizer]:
    """Read a file of word vectors as a network with its tokenizer; log what is not obvious."""
    vectors = read_word_vectors(path)
    notes = list(vectors.notes)
    if vectors.lowercase:
        notes.append(f"All words of {path} are lower case: texts are lower-cased.")
    for note in notes:
        LOGGER.warning(note)
    network, tokenizer = static_model(vectors)
    return network.to(dtype), tokenizer


def static_model(vectors: WordVectors) -> tuple[StaticVectors, Tokenizer]:
    """Build the network and the tokenizer of word vectors.

    >>> small = WordVectors(["sun", "moon"], np.eye(2, dtype=np.float32))
    >>> network, tokenizer = static_model(small)
    >>> tokenizer.encode("The Moon."), network.config.unknown_token_id
    ([2, 1, 2], 2)
    """
    tokenizer, unknown_id = word_tokenizer(vectors.words, lowercase=vectors.lowercase)
    matrix = vectors.vectors
    if unknown_id == len(matrix):
        matrix = np.concatenate([matrix, np.zeros((1, matrix.shape[1]), dtype=np.float32)])
    network = StaticVectors.from_matrix(torch.from_numpy(matrix), unknown_token_id=unknown_id)
    return network.eval(), tokenizer


def word_tokenizer(words: list[str], *, lowercase: bool) -> tuple[Tokenizer, int]:
    """Return a tokenizer with these words, and the id of <unk>: the last, if it is not a word."""
    ids = {word: id for id, word in enumerate(words)}
    unknown_id = ids.setdefault(UNKNOWN, len(ids))
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, UNKNOWN))
    backend.pre_tokenizer = KINDS["word"].pre_tokenizer
    if "n't" not in ids and "don't" in ids:
        steps = [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(tokenizers.Regex(WHOLE_WORDS), "isolated"),
        ]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.add_special_tokens([tokenizers.AddedToken(UNKNOWN, special=True)])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": UNKNOWN}
    return Tokenizer(backend, config), unknown_id


class ModelOfWords(Protocol):
    """A model in memory, which may have word vectors."""

    source: str | None

    @property
    def network(self) -> object: ...
    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raise an error if there is none."""


def vectors_of_model(model: ModelOfWords, limit: int = 0) -> WordVectors:
    """Return the word vectors of a model, without special tokens, to write them to a file."""
    network, source = model.network, model.source or "The model"
    if not isinstance(network, StaticVectors):
        raise MismatchError(
            f"{source} has no word vectors, but computes a vector for each word in its context; "
            "`firth embed` writes vectors of texts."
        )
    tokenizer = model.require_tokenizer()
    special = {network.config.unknown_token_id, *tokenizer.backend.get_added_tokens_decoder()}
    words = {id: word for word, id in tokenizer.backend.get_vocab().items() if id not in special}
    ids = sorted(words)[: limit or None]
    weight = network.tokens.weight.detach().float().cpu().numpy()
    return WordVectors([words[id] for id in ids], weight[ids], source)
