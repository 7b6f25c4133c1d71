"""Cells that evaluate a pre-trained model without fine-tuning: bits per byte and minimal pairs.

`predicted_words` in blank_cells.py is the third.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from firth.inference.scoring.log_likelihood import log_likelihoods
from firth.inference.scoring.pseudo_log_likelihood import pseudo_log_likelihoods
from firth.metrics.language_modelling import preferences
from firth.model import Model, load
from firth.study.cells.blank_cells import BOTH, Blank, score_blanks
from firth.study.cells.held_out_text import text_pieces
from firth.study.cells.input_cells import File
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.tasks.readers.columns import TaskFile, good_examples
from firth.tasks.readers.examples import MinimalPair
from firth.tasks.readers.sentence_pairs import read_minimal_pairs
from firth.utils.rng import Floats


def bits_per_byte(
    context: CellContext, *, model: File, text: File, texts: int, max_words: int
) -> Mapping[str, Any]:
    """Compute the bits per byte of the second half of held-out texts, given the first half.

    So a prefix language model, whose prefix is bidirectional, and a causal one predict the same.
    """
    pieces = text_pieces(context.path(text), texts=texts, max_words=max_words)
    halves = [split_in_half(piece) for piece in pieces]
    loaded = load(context.path(model), device=context.device)
    found = loaded.score([second for _, second in halves], [first for first, _ in halves])
    bits = [-score.total / math.log(2) for score in found]
    sizes = [len(second.encode()) for _, second in halves]
    return {"scores": {"bits per byte": score_values(bits, sizes)}}


def split_in_half(text: str) -> tuple[str, str]:
    """Split a text after half of its words.

    >>> split_in_half("The cat sat down here")
    ('The cat', ' sat down here')
    """
    words = text.split()
    middle = len(words) // 2
    return " ".join(words[:middle]), " " + " ".join(words[middle:])


def minimal_pairs(
    context: CellContext, *, model: File, pairs: File, limit: int
) -> Mapping[str, Any]:
    """Tell for each minimal pair whether the model prefers the right sentence; a tie is a half.

    A model that fills masks scores by pseudo-log-likelihood, another decoder by log-likelihood, an
    encoder-decoder by the log-probability of the words in which the sentences differ.
    """
    examples = list(good_examples(read_minimal_pairs, TaskFile(context.path(pairs))))
    places = np.linspace(0, len(examples) - 1, min(limit, len(examples))).astype(int)
    chosen = [examples[place] for place in np.unique(places)]
    scores = pair_scores(load(context.path(model), device=context.device), chosen)
    return {"scores": {"accuracy": score_values(preferences(scores[:, 0], scores[:, 1]))}}


def pair_scores(model: Model, pairs: Sequence[MinimalPair]) -> Floats:
    """Score the sentences of pairs, the right one first: (pairs, 2)."""
    if model.config.architecture == "encoder-decoder":
        blanks = chain.from_iterable(differing_words(pair.good, pair.bad) for pair in pairs)
        return score_blanks(model, list(blanks), BOTH)[0].reshape(-1, 2)
    score = log_likelihoods if model.reads_left_context_only else pseudo_log_likelihoods
    sentences = chain.from_iterable(pair.inputs for pair in pairs)
    found = score(model.network, model.require_tokenizer(), sentences)
    return np.array([one.sum for one in found]).reshape(-1, 2)


def differing_words(good: str, bad: str) -> tuple[Blank, Blank]:
    """Return the words in which two sentences differ as answers to the same blank.

    >>> [blank.answer for blank in differing_words("The ducks wait.", "The ducks waits.")]
    ['wait', 'waits']
    """
    start, end = _shared(good, bad), _shared(good[::-1], bad[::-1])
    end = min(end, min(len(good), len(bad)) - start)
    while start and good[start - 1].isalnum():
        start -= 1
    while end and good[len(good) - end].isalnum():
        end -= 1
    before, after = good[:start], good[len(good) - end :]
    first, second = (text[start : len(text) - end] for text in (good, bad))
    return Blank(0, before, first, after), Blank(0, before, second, after)


def _shared(first: str, second: str) -> int:
    """Count the characters that two texts have in common at the beginning."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
