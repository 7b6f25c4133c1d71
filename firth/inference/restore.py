"""Put back what was taken out of a text: an encoder reads what is left, a decoder writes the rest.

T5 answers blank by blank, each behind its sentinel; BART writes the whole text anew.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from math import exp
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.adapt.prompts import room_in
from firth.errors import Misuse
from firth.inference.blanks import Blanks, Piece, cut_words, span_piece
from firth.inference.filler import Filled, Filler, Guess, Ids, Question, Whole
from firth.inference.generate import greedy
from firth.inference.rows import Asked, scores
from firth.inference.search_spans import Rule, search
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer

SPAN = 16  # tokens of one blank, at most
MORE = 8  # tokens that a text may grow by with each blank
ROWS = 320  # that are written at once: several for each text


def restore(network: Transformer, tokenizer: Tokenizer, damaged: Sequence[int]) -> list[list[int]]:
    """What belongs into each hole of a damaged text, whose holes are sentinels (T5)."""
    holes = [id for id in damaged if id in set(tokenizer.sentinel_ids)]
    if not holes:
        raise Misuse("There is no hole in the text: write <extra_id_0> where something is missing.")
    most = min(network.config.context - 1, 8 * len(holes) + 8)
    written = greedy(network, [list(damaged)], most=most, end=network.config.end_id)[0]
    return [between(written, hole, set(holes)) for hole in holes]


def between(written: Sequence[int], hole: int, holes: set[int]) -> list[int]:
    """The tokens behind a sentinel, up to the next one.

    >>> between([90, 1, 2, 91, 3], 90, {90, 91}), between([90, 1], 91, {90, 91})
    ([1, 2], [])
    """
    if hole not in written:
        return []
    found = []
    for id in written[written.index(hole) + 1 :]:
        if id in holes:
            break
        found.append(id)
    return found


# ---- rules --------------------------------------------------------------------------------------


def spans_rule(filler: Filler, blanks: int) -> Rule:
    """T5's answer: each sentinel in its turn, behind it a span; the last span may also just end.

    A span is text: it holds no sentinel and no other special token.
    """
    tokenizer, config = filler.tokenizer, filler.network.config
    marks = tokenizer.sentinel_ids[: blanks + 1]
    last = [marks[-1], *([] if config.end_id is None else [config.end_id])]
    place = {mark: number for number, mark in enumerate(marks)}
    text = torch.zeros(config.vocabulary, dtype=torch.bool)
    text[: len(tokenizer)] = True
    text[[*tokenizer.backend.get_added_tokens_decoder(), *tokenizer.sentinel_ids]] = False

    def following(written: Ids) -> Tensor:
        begin = max((i for i, id in enumerate(written) if id in place), default=-1)
        blank = place[written[begin]] if written else -1
        full = not written or len(written) - begin > SPAN
        allowed = torch.zeros_like(text) if full else text.clone()
        allowed[last if blank == blanks - 1 else marks[blank + 1]] = True
        return allowed

    most = min(room_in(filler.network.stack) - 1, blanks * (SPAN + 1) + 1)
    return Rule(following, lambda written: written[-1] in last, most)


def spans_of(tokenizer: Tokenizer, written: Ids, blanks: int) -> list[Ids]:
    """The span behind each sentinel of an answer."""
    marks = tokenizer.sentinel_ids[:blanks]
    holes = set(tokenizer.sentinel_ids)
    end = written[:-1] if written and written[-1] not in holes else written  # an end token
    return [tuple(between(end, mark, holes)) for mark in marks]


def whole_rule(filler: Filler, question: Question) -> Rule:
    """BART's answer: the whole text, which may be a little longer than what was read."""
    longest = len(question.ids) + MORE * len(question.blanks)
    most = min(room_in(filler.network.stack) - 1, longest)
    end = filler.network.config.end_id
    return Rule(lambda written: None, lambda written: written[-1] == end, most)


def aligned(blanks: Blanks, tokenizer: Tokenizer, text: str) -> list[str] | None:
    """What a text that was written anew has in each blank; None if it changed the rest as well."""
    parts = [
        r"\s+".join(map(re.escape, tokenizer.decode(tokenizer.encode(part)).split()))
        for part in blanks.parts
    ]
    found = re.fullmatch(r"\s*" + r"\s*(.*?)\s*".join(parts) + r"\s*", text, re.DOTALL)
    return list(found.groups()) if found else None


# ---- a text that is written ---------------------------------------------------------------------


class Answer(NamedTuple):
    """What an encoder-decoder writes: the text in each blank, and the whole of it."""

    parts: tuple[str, ...]  # none where it changed more than the blanks
    log: float
    text: str


def by_writing(
    filler: Filler, questions: Sequence[Question], top: int, targets: Sequence[str]
) -> list[Filled]:
    found = []
    at_once = max(1, ROWS // (2 * top))
    for begin in range(0, len(questions), at_once):
        some = questions[begin : begin + at_once]
        said = _scored(filler, some, targets) if targets else _written(filler, some, top)
        for question, answers in zip(some, said, strict=True):
            found.append(_gathered(question, answers, len(targets) or top))
    return found


def _written(filler: Filler, questions: Sequence[Question], top: int) -> list[list[Answer]]:
    """The likeliest that it writes, of which some may say the same."""
    spans = filler.way == "spans"
    rules = [
        spans_rule(filler, len(question.blanks)) if spans else whole_rule(filler, question)
        for question in questions
    ]
    sources = [question.ids for question in questions]
    found = search(filler.network, sources, rules, width=2 * top)
    return [
        [_answer(filler, question, tokens, log) for tokens, log, _ in own]
        for question, own in zip(questions, found, strict=True)
    ]


def _answer(filler: Filler, question: Question, tokens: Ids, log: float) -> Answer:
    tokenizer, blanks = filler.tokenizer, question.blanks
    if filler.way == "spans":
        pieces = [span_piece(tokenizer, own) for own in spans_of(tokenizer, tokens, len(blanks))]
        return Answer(tuple(piece.text for piece in pieces), log, blanks.filled(pieces))
    text = tokenizer.decode(tokens, skip_specials=True).strip()
    return Answer(tuple(aligned(blanks, tokenizer, text) or ()), log, text)


def _scored(
    filler: Filler, questions: Sequence[Question], targets: Sequence[str]
) -> list[list[Answer]]:
    """How likely just these are, in the one blank of each text."""
    network, tokenizer, asked = filler.network, filler.tokenizer, []
    start, end = network.config.start_id or 0, network.config.end_id
    texts = []
    for question in questions:
        if len(question.blanks) > 1:
            raise Misuse("An encoder-decoder says how likely words are for one blank, not several.")
        for target in targets:
            text = question.blanks.filled([Piece(target)])
            endings = [filler.frame(text)]
            if filler.way == "spans":
                spaced = bool(question.blanks.parts[0])
                span = cut_words(tokenizer, [target], spaced=spaced)[0]
                first, second = tokenizer.sentinel_ids[:2]
                endings = [(first, *span, second), *([] if end is None else [(first, *span, end)])]
            texts.append((text, target, len(endings)))
            asked += [
                Asked((start, *ids[:-1]), range(len(ids)), ids, question.ids) for ids in endings
            ]
    sums = iter([score.sum for score in scores(network, asked)])
    answers = iter(
        [
            Answer((target,), float(np.logaddexp.reduce([next(sums) for _ in range(count)])), text)
            for text, target, count in texts
        ]
    )
    return [[next(answers) for _ in targets] for _ in questions]


def _gathered(question: Question, answers: Sequence[Answer], top: int) -> Filled:
    """Answers that say the same count together; so do those with the same in one blank."""
    wholes: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        wholes[answer.text].append(answer)
    sentences = [
        Whole(list(own[0].parts), sum(exp(answer.log) for answer in own), text)
        for text, own in wholes.items()
    ]
    sentences.sort(key=lambda whole: -whole.score)
    if len(question.blanks) == 1:
        guesses = [Guess((*whole.tokens, "")[0], whole.score, whole.text) for whole in sentences]
        return Filled(question.text, [guesses[:top]], [])
    lists = []
    for blank in range(len(question.blanks)):
        by_part: dict[str, list[Whole]] = defaultdict(list)
        for whole in sentences:
            if whole.tokens:
                by_part[whole.tokens[blank]].append(whole)
        guesses = [
            Guess(part, sum(whole.score for whole in own), own[0].text)
            for part, own in by_part.items()
        ]
        lists.append(sorted(guesses, key=lambda guess: -guess.score)[:top])
    return Filled(question.text, lists, sentences[:top])
