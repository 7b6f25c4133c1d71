"""Fill in the blanks of a text: the likeliest tokens for each, and for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.errors import Misuse
from firth.inference.batches import by_length, not_numbers
from firth.inference.blanks import Piece, cut_words, token_piece
from firth.inference.filler import Filled, Filler, Guess, Ids, Question, Whole, make_filler
from firth.inference.restore import by_writing
from firth.inference.rows import Asked, read_rows
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer

TOKENS = 8192  # that are read at once
SCORES = 1 << 24  # numbers held at a time: the scores of all tokens at some blanks


def fill(
    network: Transformer, tokenizer: Tokenizer, text: str, *, top: int = 5
) -> list[list[Guess]]:
    """The likeliest tokens for each blank of a text, best first."""
    filler = make_filler(network, tokenizer)
    return fill_all(filler, [filler.read(text)], top=top)[0].blanks


def fill_all(
    filler: Filler, questions: Sequence[Question], *, top: int = 5, targets: Sequence[str] = ()
) -> list[Filled]:
    """What may stand in the blanks of several texts; with `targets`, how likely just those are."""
    if top < 1:
        raise Misuse("--top is how many guesses there are for a blank: at least 1.")
    answer = _by_masks if filler.way == "masks" else by_writing
    return answer(filler, questions, top, targets)


# ---- a token for each blank ---------------------------------------------------------------------


class Best(NamedTuple):
    """The likeliest tokens of one blank."""

    ids: list[int]
    shares: list[float]


def _by_masks(
    filler: Filler, questions: Sequence[Question], top: int, targets: Sequence[str]
) -> list[Filled]:
    only = [_target_ids(filler, question, targets) for question in questions] if targets else []
    rows = [(question.ids, question.places) for question in questions]
    answers = likeliest(filler, rows, top, only)
    wholes = _together(filler, questions, answers, top, bool(targets))
    return [
        Filled(question.text, _guesses(filler, question, best), whole)
        for question, best, whole in zip(questions, answers, wholes, strict=True)
    ]


@torch.no_grad()
def likeliest(
    filler: Filler,
    rows: Sequence[tuple[Ids, Ids]],
    top: int,
    only: Sequence[Sequence[Sequence[int]]] = (),
) -> list[list[Best]]:
    """The likeliest tokens at some places of rows; `only`: of these, for each place, and no others.

    Rows are read in batches, and answered independently of them.
    """
    found: list[list[Best]] = [[] for _ in rows]
    for batch in by_length([(len(ids),) for ids, _ in rows], TOKENS):
        hidden, owners, numbers = _look(filler, [rows[i] for i in batch])
        at_once = max(1, SCORES // filler.network.config.vocabulary)
        for begin in range(0, len(hidden), at_once):
            shares = filler.network.logits(hidden[begin : begin + at_once]).float().softmax(-1)
            if shares.isnan().any():
                raise not_numbers()
            places = range(begin, begin + len(shares))
            owner = [(batch[owners[i]], numbers[i]) for i in places]
            if only:
                chosen = [only[row][number] for row, number in owner]
                for (row, _), own, ids in zip(owner, shares, chosen, strict=True):
                    found[row].append(_sorted(ids, own[list(ids)].tolist()))
                continue
            best = shares.topk(min(top, shares.shape[1]))
            lists = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            for (row, _), (ids, values) in zip(owner, lists, strict=True):
                found[row].append(Best(ids, values))
    return found


def _sorted(ids: Sequence[int], shares: Sequence[float]) -> Best:
    order = np.argsort([-share for share in shares], kind="stable")
    return Best([ids[i] for i in order], [shares[i] for i in order])


def _look(filler: Filler, rows: Sequence[tuple[Ids, Ids]]) -> tuple[Tensor, list[int], list[int]]:
    """What the head sees at each place; whose place it is, and the number it has there."""
    hidden = read_rows(filler.network, [Asked(ids, (), ()) for ids, _ in rows], both_ways=True)
    lengths = [len(ids) for ids, _ in rows]
    begins = np.cumsum(lengths) - lengths
    places = [
        int(begin) + place - filler.shift
        for begin, (_, own) in zip(begins, rows, strict=True)
        for place in own
    ]
    owners = [i for i, (_, own) in enumerate(rows) for _ in own]
    numbers = [number for _, own in rows for number in range(len(own))]
    return hidden[places], owners, numbers


def _guesses(filler: Filler, question: Question, answers: Sequence[Best]) -> list[list[Guess]]:
    """The guesses for each blank; the others stay blank."""
    tokenizer, lists = filler.tokenizer, []
    for blank, best in enumerate(answers):
        pieces = [Piece(filler.mark, begins=False)] * len(question.blanks)
        guesses = []
        for id, share in zip(*best, strict=True):
            pieces[blank] = token_piece(tokenizer, id)
            guesses.append(Guess(_name(tokenizer, id), share, question.blanks.filled(pieces)))
        lists.append(guesses)
    return lists


def _name(tokenizer: Tokenizer, id: int) -> str:
    return tokenizer.decode([id]).strip() or str(tokenizer.backend.id_to_token(id))


def _together(
    filler: Filler,
    questions: Sequence[Question],
    first: Sequence[Sequence[Best]],
    top: int,
    chosen: bool,
) -> list[list[Whole]]:
    """The likeliest ways to fill several blanks, from the left, each token given those before it.

    A beam search of `top` beams; the score is the product of the probabilities.
    """
    several = [i for i, question in enumerate(questions) if len(question.places) > 1 and not chosen]
    beams = {i: _extended([((), 0.0)], [first[i][0]], top) for i in several}
    for blank in range(1, max((len(questions[i].places) for i in several), default=0)):
        todo = [i for i in several if blank < len(questions[i].places)]
        rows = [
            (_with(questions[i], tokens), questions[i].places[blank : blank + 1])
            for i in todo
            for tokens, _ in beams[i]
        ]
        answers = iter(likeliest(filler, rows, top))
        for i in todo:
            beams[i] = _extended(beams[i], [next(answers)[0] for _ in beams[i]], top)
    return [
        [_whole(filler, question, *beam) for beam in beams.get(i, ())]
        for i, question in enumerate(questions)
    ]


Beam = tuple[Ids, float]


def _extended(beams: Sequence[Beam], answers: Sequence[Best], top: int) -> list[Beam]:
    longer = [
        ((*tokens, id), total + log(max(share, 1e-45)))
        for (tokens, total), best in zip(beams, answers, strict=True)
        for id, share in zip(*best, strict=True)
    ]
    return sorted(longer, key=lambda beam: -beam[1])[:top]


def _with(question: Question, tokens: Ids) -> Ids:
    ids = list(question.ids)
    for place, id in zip(question.places, tokens, strict=False):
        ids[place] = id
    return tuple(ids)


def _whole(filler: Filler, question: Question, tokens: Ids, total: float) -> Whole:
    text = question.blanks.filled([token_piece(filler.tokenizer, id) for id in tokens])
    return Whole([_name(filler.tokenizer, id) for id in tokens], exp(total), text)


def _target_ids(filler: Filler, question: Question, targets: Sequence[str]) -> list[list[int]]:
    """The one token of each word, for each blank: at the beginning of a text it may be another."""
    tokenizer, lists = filler.tokenizer, []
    for before in question.blanks.parts[:-1]:
        lists.append([word_token(tokenizer, word, spaced=bool(before)) for word in targets])
    return lists


def word_token(tokenizer: Tokenizer, word: str, *, spaced: bool) -> int:
    """The token that a word is, behind a space or at the beginning of a text."""
    ids = cut_words(tokenizer, [word], spaced=spaced)[0]
    if len(ids) != 1:
        cut = " ".join(str(tokenizer.backend.id_to_token(id)) for id in ids)
        raise Misuse(
            f"{word!r} is {len(ids)} tokens to this model ({cut}), but a blank holds one: name "
            "words that are one token."
        )
    if ids[0] == tokenizer.unknown_id:
        raise Misuse(f"{word!r} is not in this model's vocabulary.")
    return ids[0]
