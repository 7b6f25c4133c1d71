"""Train a Unigram language model (Kudo 2018) with the `tokenizers` library, from word counts.

The library trains on text, so a sample of the words is written out; its result is made
deterministic.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from firth.utils.errors import InputError

MAX_SAMPLE = 4_000_000  # words


def train_unigram(
    words: Sequence[str], counts: Sequence[int], size: int, specials: Sequence[str], unknown: str
) -> models.Model:
    """Train a Unigram model of `size` tokens, including the special tokens, from word counts."""
    characters: Counter[str] = Counter()
    for word, times in zip(words, counts, strict=True):
        for character in word:
            characters[character] += times
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    room = size - len(specials)
    limit = max(1, room // 2)  # single characters, or more if nothing else fills the vocabulary
    while True:
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=list(specials), unk_token=unknown, show_progress=False
        )
        pieces = _train(_sample(words, counts, set(ranked[:limit])), trainer)
        missing = size - len(pieces)
        if missing <= 0 or limit >= min(room, len(ranked)):
            break
        limit = min(room, limit + missing)
    ordered = _sorted_pieces(pieces, specials)
    return models.Unigram(ordered, specials.index(unknown), byte_fallback=False)


def _train(sample: Iterator[str], trainer: trainers.Trainer) -> list[list[Any]]:
    """Run the library's trainer; return the pieces, each with its score."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    try:
        backend.train_from_iterator(sample, trainer)
    except Exception as error:  # the library raises nothing more precise
        raise InputError(f"No Unigram vocabulary can be trained on this text: {error}.") from error
    pieces: list[list[Any]] = json.loads(backend.to_str())["model"]["vocab"]
    return pieces


def _sample(words: Sequence[str], counts: Sequence[int], characters: set[str]) -> Iterator[str]:
    """Sample at most MAX_SAMPLE words in proportion to their counts.

    Systematic sampling: words are taken at equal steps of the cumulative counts. Other characters
    than `characters` are dropped.
    """
    total = np.cumsum(np.asarray(counts, dtype=np.int64))
    taken = np.floor(total * min(1.0, MAX_SAMPLE / max(1, total[-1]))).astype(np.int64)
    for word, times in zip(words, np.diff(taken, prepend=0).tolist(), strict=True):
        if times and (kept := "".join(c for c in word if c in characters)):
            yield " ".join([kept] * times)


def _sorted_pieces(pieces: list[list[Any]], specials: Sequence[str]) -> list[tuple[str, float]]:
    """Make pieces and scores independent of the random order of the library's hash tables.

    Sums in another order differ in their last digits, and single characters outside the learned
    pieces get the lowest score plus a small step each, in random order.
    """
    learned = {piece: round(score, 6) for piece, score in pieces if piece not in specials}
    lowest = min(learned.values(), default=0.0)
    steps = {
        piece: score
        for piece, score in learned.items()
        if len(piece) == 1 and abs(((score - lowest) * 1e4 + 0.5) % 1 - 0.5) < 0.1
    }
    learned.update(zip(sorted(steps), sorted(steps.values()), strict=True))
    ranked = sorted(learned.items(), key=lambda item: (-item[1], item[0]))
    return [(token, 0.0) for token in specials] + ranked
