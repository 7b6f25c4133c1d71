"""Cells that remove words of texts, and let models predict them.

A word is right if its tokens are the most probable ones, as for the last words of LAMBADA
(Paperno et al. 2016). By default only words are removed that are one token for all models: a masked
model is given the number of tokens of the word, which a decoder is not.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from firth.formats.tokenizers.loading import load_tokenizer
from firth.inference.infilling.blanks import BlankedText
from firth.inference.prompting.candidates import PromptedModel, tokenize_continuation
from firth.jobs.fill_comparison import answer_request, prompted_model
from firth.model import Model, load
from firth.study.cells.held_out_text import MIN_TEXTS, text_pieces
from firth.study.cells.input_cells import File
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError
from firth.utils.files import atomic_file
from firth.utils.rng import Floats

BLANKS = "blanks.jsonl"
BOTH, LEFT = "both sides", "left only"  # the context that a model sees
LEFT_WORDS = (1, 5, 10, 20)  # first numbers of words before the blank, of which accuracy is shown
SHOWN = 6  # blanks with their predictions in the result,
SHOWN_CHARACTERS = 40  # and as many characters before and after each
_WORD = re.compile(r"(?<= )[^\W\d_]+(?:['’-][^\W\d_]+)*(?=[\s.,;:!?]|$)")


class Blank(NamedTuple):
    """A word removed from a text."""

    text: int
    before: str
    answer: str
    after: str

    @property
    def left_words(self) -> int:
        """The number of words before the blank."""
        return len(self.before.split())


def removed_words(
    context: CellContext,
    *,
    text: File,
    tokenizers: Sequence[File],
    texts: int,
    blanks: int,
    max_words: int,
    one_token: bool = True,
) -> Mapping[str, Any]:
    """Remove up to `blanks` words, one at a time, from each of `texts` held-out texts.

    Texts are pieces of at most `max_words` words, evenly spaced in the corpus. The seed determines
    the words, which are known to all tokenizers.
    """
    path, rng = context.path(text), np.random.default_rng(context.seed)
    known = [load_tokenizer(context.path(one)) for one in tokenizers]
    pieces = text_pieces(path, texts=texts, max_words=max_words)
    removed = list[Blank]()
    for i, piece in enumerate(pieces):
        options = [one for one in _words(i, piece) if _is_known(one, known, one_token)]
        chosen = rng.permutation(len(options))[:blanks]
        removed += [options[j] for j in sorted(chosen)]
    if len({blank.text for blank in removed}) < MIN_TEXTS:
        raise InputError(
            f"{path} has too few words that all tokenizers have as one token; use another text."
        )
    with atomic_file(context.folder / BLANKS) as file:
        for blank in removed:
            file.write(json.dumps(blank, ensure_ascii=False).encode() + b"\n")
    words = Counter(blank.answer.lower() for blank in removed)
    [(word, count)] = words.most_common(1)
    return {
        "texts": len(pieces),
        "blanks": len(removed),
        "most_frequent": word,
        "baseline": count / len(removed),  # the accuracy of always predicting this word
    }


def _words(text: int, piece: str) -> Iterator[Blank]:
    """Yield the words of a text that follow another one.

    >>> [blank.answer for blank in _words(0, "A man's 3 cats slept, mostly.")]
    ["man's", 'cats', 'slept', 'mostly']
    """
    for found in _WORD.finditer(piece):
        yield Blank(text, piece[: found.start()], found[0], piece[found.end() :])


def _is_known(blank: Blank, tokenizers: Sequence[Tokenizer], one_token: bool) -> bool:
    for tokenizer in tokenizers:
        _, ids = tokenize_continuation(tokenizer, blank.before.rstrip(), f" {blank.answer}")
        if tokenizer.unknown_id in ids or (one_token and len(ids) > 1):
            return False
    return True


def read_blanks(file: Path) -> list[Blank]:
    """Read what `removed_words` wrote."""
    return [Blank(*json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def predicted_words(
    context: CellContext, *, model: File, blanks: Cell, sees: str
) -> Mapping[str, Any]:
    """Predict removed words from the text on both sides of each, or before it only.

    Scores have one example per text: accuracy, and the log-probability of the right word in nats.
    """
    removed = read_blanks(context.path(blanks) / BLANKS)
    loaded = load(context.path(model), device=context.device)
    log_probs, right = score_blanks(loaded, removed, sees)
    owners = np.array([blank.text for blank in removed])
    left = np.array([blank.left_words for blank in removed])
    scores = {
        "accuracy": _by_text(right, owners),
        "log-probability": _by_text(log_probs, owners),
    }
    means = {}
    for low, high in zip(LEFT_WORDS, (*LEFT_WORDS[1:], np.inf), strict=True):
        inside = (left >= low) & (left < high)
        scores[accuracy_from(low)] = _by_text(right, owners, inside)
        means[accuracy_from(low)] = float(left[inside].mean()) if inside.any() else None
    return {
        "scores": scores,
        "left_words": means,  # the mean number of words before the blanks of each score
        "examples": [
            {
                "text": _excerpt(one),
                "answer": one.answer,
                "probability": float(np.exp(log_probs[i])),
                "right": bool(right[i]),
            }
            for i, one in enumerate(removed[:SHOWN])
        ],
    }


def _excerpt(blank: Blank) -> str:
    before, after = blank.before[-SHOWN_CHARACTERS:], blank.after[:SHOWN_CHARACTERS]
    more = ("…" if before != blank.before else "", "…" if after != blank.after else "")
    return f"{more[0]}{before}___{after}{more[1]}"


def accuracy_from(low: int) -> str:
    """Name the accuracy at blanks after at least `low` words, and fewer than the next of them."""
    return f"accuracy from {low} words"


def score_blanks(model: Model, blanks: Sequence[Blank], sees: str) -> tuple[Floats, Floats]:
    """Return the log-probability of each removed word, and whether it is the most probable."""
    scorer = left_scorer(model) if sees == LEFT else prompted_model(model)
    texts = (BlankedText((one.before, "" if sees == LEFT else one.after)) for one in blanks)
    requests = (
        answer_request(scorer, text, one.answer) for text, one in zip(texts, blanks, strict=True)
    )
    found = list(scorer.score(requests))
    return np.array([one.sum for one in found]), np.array([float(one.is_greedy) for one in found])


def left_scorer(model: Model) -> PromptedModel:
    """Return what predicts a word from the text before it; a decoder, as the next word."""
    scorer = prompted_model(model)
    return replace(scorer, cloze=scorer.cloze and model.config.architecture == "encoder")


def _by_text(values: Any, owners: Any, kept: Any = None) -> dict[str, list[float]]:
    weights = np.ones(len(owners)) if kept is None else kept.astype(float)
    size = int(owners.max()) + 1
    return score_values(
        np.bincount(owners, values * weights, size), np.bincount(owners, weights, size)
    )
