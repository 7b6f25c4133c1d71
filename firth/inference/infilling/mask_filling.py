"""Fill blanks with a masked language model: the best tokens per blank, and for all together."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.inference.batching import batch_by_length, nan_error
from firth.inference.infilling.blanks import BlankFill, token_fill, tokenize_words
from firth.inference.infilling.fill_methods import (
    BlankFiller,
    EncodedBlanks,
    FillCandidate,
    FilledSentence,
    FillResult,
    Ids,
    make_filler,
)
from firth.inference.infilling.span_filling import fill_by_generation
from firth.inference.scoring.token_scoring import ScoringRequest, hidden_states
from firth.models.language_model import LanguageNetwork
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import UsageError

MAX_LOGITS = 1 << 24  # logits in memory at a time


def fill(
    network: LanguageNetwork, tokenizer: Tokenizer, text: str, *, top: int = 5
) -> list[list[FillCandidate]]:
    """Return the best candidates for each blank of a text."""
    filler = make_filler(network, tokenizer)
    return fill_batch(filler, [filler.encode(text)], top=top)[0].blanks


def fill_batch(
    filler: BlankFiller,
    questions: Sequence[EncodedBlanks],
    *,
    top: int = 5,
    targets: Sequence[str] = (),
) -> list[FillResult]:
    """Fill the blanks of several texts, with the `top` best fills or the given `targets`."""
    if top < 1:
        raise UsageError("--top, the number of candidates per blank, must be at least 1.")
    method = _fill_by_masks if filler.method == "masks" else fill_by_generation
    return method(filler, questions, top, targets)


class TopTokens(NamedTuple):
    """The most probable tokens of one blank."""

    ids: list[int]
    probs: list[float]


def _fill_by_masks(
    filler: BlankFiller, questions: Sequence[EncodedBlanks], top: int, targets: Sequence[str]
) -> list[FillResult]:
    only = [_target_ids(filler, question, targets) for question in questions] if targets else []
    rows = [(question.ids, question.positions) for question in questions]
    found = top_tokens(filler, rows, top, only)
    sentences = [[] for _ in questions] if targets else _fill_jointly(filler, questions, found, top)
    return [
        FillResult(question.text, _candidates(filler, question, best), own)
        for question, best, own in zip(questions, found, sentences, strict=True)
    ]


@torch.no_grad()
def top_tokens(
    filler: BlankFiller,
    rows: Sequence[tuple[Ids, Ids]],
    top: int,
    only: Sequence[Sequence[Sequence[int]]] = (),
) -> list[list[TopTokens]]:
    """Return the most probable tokens at the given positions of each row.

    `only` restricts them to the given tokens, for each position of each row. Results do not depend
    on the batching.
    """
    found: list[list[TopTokens]] = [[] for _ in rows]
    for batch in batch_by_length([(len(ids),) for ids, _ in rows]):
        hidden, owners = _hidden_at(filler, [rows[i] for i in batch])
        chunk = max(1, MAX_LOGITS // filler.network.config.vocab_size)
        for begin in range(0, len(hidden), chunk):
            probs = filler.network.logits(hidden[begin : begin + chunk]).float().softmax(-1)
            if probs.isnan().any():
                raise nan_error()
            own = [(batch[row], blank) for row, blank in owners[begin : begin + chunk]]
            if only:
                for (row, blank), values in zip(own, probs, strict=True):
                    ids = only[row][blank]
                    found[row].append(_sorted(ids, values[list(ids)].tolist()))
                continue
            best = probs.topk(min(top, probs.shape[1]))
            lists = zip(own, best.indices.tolist(), best.values.tolist(), strict=True)
            for (row, _), ids, values in lists:
                found[row].append(TopTokens(ids, values))
    return found


def _sorted(ids: Sequence[int], probs: Sequence[float]) -> TopTokens:
    order = np.argsort([-prob for prob in probs], kind="stable")
    return TopTokens([ids[i] for i in order], [probs[i] for i in order])


def _hidden_at(
    filler: BlankFiller, rows: Sequence[tuple[Ids, Ids]]
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Return the hidden state of each position, and the (row, blank) it belongs to."""
    requests = [ScoringRequest(ids, (), ()) for ids, _ in rows]
    hidden = hidden_states(filler.network, requests, bidirectional=True)
    lengths = [len(ids) for ids, _ in rows]
    starts = np.cumsum(lengths) - lengths
    indices = [
        int(start) + position - filler.shift
        for start, (_, positions) in zip(starts, rows, strict=True)
        for position in positions
    ]
    owners = [(i, blank) for i, (_, own) in enumerate(rows) for blank in range(len(own))]
    return hidden[indices], owners


def _candidates(
    filler: BlankFiller, question: EncodedBlanks, found: Sequence[TopTokens]
) -> list[list[FillCandidate]]:
    """Return the candidates for each blank; in their texts, the other blanks stay."""
    tokenizer, lists = filler.tokenizer, []
    for blank, best in enumerate(found):
        fills = [BlankFill(filler.mark, starts_word=False)] * len(question.blanks)
        candidates = []
        for id, prob in zip(*best, strict=True):
            fills[blank] = token_fill(tokenizer, id)
            text = question.blanks.filled(fills)
            candidates.append(FillCandidate(_token_text(tokenizer, id), prob, text))
        lists.append(candidates)
    return lists


def _token_text(tokenizer: Tokenizer, id: int) -> str:
    return tokenizer.decode([id]).strip() or str(tokenizer.backend.id_to_token(id))


def _fill_jointly(
    filler: BlankFiller,
    questions: Sequence[EncodedBlanks],
    first: Sequence[Sequence[TopTokens]],
    top: int,
) -> list[list[FilledSentence]]:
    """Fill several blanks from left to right, each token given the previous ones.

    A beam search of `top` beams; the score is the product of the probabilities.
    """
    several = [i for i, question in enumerate(questions) if len(question.positions) > 1]
    beams = {i: _extend([((), 0.0)], [first[i][0]], top) for i in several}
    for blank in range(1, max((len(questions[i].positions) for i in several), default=0)):
        active = [i for i in several if blank < len(questions[i].positions)]
        rows = [
            (_with_tokens(questions[i], tokens), questions[i].positions[blank : blank + 1])
            for i in active
            for tokens, _ in beams[i]
        ]
        found = iter(top_tokens(filler, rows, top))
        for i in active:
            beams[i] = _extend(beams[i], [next(found)[0] for _ in beams[i]], top)
    return [
        [_sentence(filler, question, *beam) for beam in beams.get(i, ())]
        for i, question in enumerate(questions)
    ]


Beam = tuple[Ids, float]


def _extend(beams: Sequence[Beam], found: Sequence[TopTokens], top: int) -> list[Beam]:
    extended = [
        ((*tokens, id), total + log(max(prob, 1e-45)))
        for (tokens, total), best in zip(beams, found, strict=True)
        for id, prob in zip(*best, strict=True)
    ]
    return sorted(extended, key=lambda beam: -beam[1])[:top]


def _with_tokens(question: EncodedBlanks, tokens: Ids) -> Ids:
    ids = list(question.ids)
    for position, id in zip(question.positions, tokens, strict=False):
        ids[position] = id
    return tuple(ids)


def _sentence(
    filler: BlankFiller, question: EncodedBlanks, tokens: Ids, total: float
) -> FilledSentence:
    text = question.blanks.filled([token_fill(filler.tokenizer, id) for id in tokens])
    return FilledSentence([_token_text(filler.tokenizer, id) for id in tokens], exp(total), text)


def _target_ids(
    filler: BlankFiller, question: EncodedBlanks, targets: Sequence[str]
) -> list[list[int]]:
    """Return each target's token for each blank; it differs at the beginning of a text."""
    return [
        [word_token(filler.tokenizer, word, spaced=bool(before)) for word in targets]
        for before in question.blanks.parts[:-1]
    ]


def word_token(tokenizer: Tokenizer, word: str, *, spaced: bool) -> int:
    """Return the single token of a word, after a space or at the beginning of a text."""
    [ids] = tokenize_words(tokenizer, [word], spaced=spaced)
    if len(ids) != 1:
        tokens = " ".join(str(tokenizer.backend.id_to_token(id)) for id in ids)
        raise UsageError(
            f"{word!r} is {len(ids)} tokens for this model ({tokens}), but a blank holds one; use "
            "words that are a single token."
        )
    if ids[0] == tokenizer.unknown_id:
        raise UsageError(f"{word!r} is not in this model's vocabulary.")
    return ids[0]
