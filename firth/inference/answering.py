"""Questions put to a model in prompts: it chooses among answers, or writes one.

Prompts are made a few at a time, so memory follows the batch and not the number of questions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from firth.draws import Floats
from firth.inference.candidates import CONTENT_FREE, Speaker, calibrated, log_shares
from firth.inference.completions import Completion, Teller
from firth.inference.prompt import BLANK, LABELS, Values, Wording
from firth.inference.restore import between
from firth.inference.rows import Asked, Score
from firth.inference.settings import Generation

AT_ONCE = 64  # questions that are put into words together

Shot = tuple[Values, str]  # an example and its answer
Prompt = tuple[str, str, tuple[str, ...]]  # what stands before an answer and behind, the answers
NONE: Floats = np.empty(0)


@dataclass(frozen=True)
class Question:
    """What is asked, what is shown before it, and what may be answered."""

    values: Values
    shots: tuple[Shot, ...] = ()
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Put:
    """A question in words, as a model can take it in."""

    before: str
    after: str
    shots: tuple[Shot, ...]
    dropped: int  # examples that found no room
    cut: bool  # even without any, it was too long

    @property
    def text(self) -> str:
        """The prompt, for a person."""
        return f"{self.before}{BLANK}{self.after}" if self.after else self.before.rstrip(" ")


@dataclass(frozen=True)
class Said:
    """What a model answers: how likely it finds each answer, or what it writes."""

    put: Put
    logs: Floats  # (K,) log-shares, by which the answer is chosen
    sums: Floats  # (K,) the log-probabilities they are made of
    text: str = ""

    @property
    def best(self) -> int:
        """The likeliest answer."""
        return int(self.logs.argmax())


def put(speaker: Speaker, wording: Wording, asked: Question, *, written: int = 0) -> Put:
    """Put a question into words; where there is no room for all examples, the first ones go."""

    def size(left_out: int) -> int:
        words = wording.prompt(asked.shots[left_out:], asked.values)
        return written + speaker.size(*words, asked.answers)

    there, dropped = len(asked.shots), 0
    if size(0) > speaker.room:
        dropped = bisect_left(range(there), -speaker.room, key=lambda left_out: -size(left_out))
    shots = asked.shots[dropped:]
    before, after = wording.prompt(shots, asked.values)
    cut = dropped == there and size(there) > speaker.room
    return Put(before, after, shots, dropped, cut)


def choose(
    speaker: Speaker,
    wording: Wording,
    questions: Iterable[Question],
    *,
    calibrate: bool = False,
    by_mean: bool = False,
) -> Iterator[Said]:
    """Score every answer to each question; `by_mean`, the mean of its tokens instead of their sum.

    With `calibrate`, each is compared with what it scores when there is no text to judge.
    """
    waiting = iter(questions)
    while some := list(islice(waiting, AT_ONCE)):
        puts = [put(speaker, wording, one) for one in some]
        prompts: list[Prompt] = [
            (own.before, own.after, one.answers) for one, own in zip(some, puts, strict=True)
        ]
        free: list[list[Prompt]] = []
        if calibrate:
            free = [_content_free(wording, one, own) for one, own in zip(some, puts, strict=True)]
        extra = list(dict.fromkeys(prompt for own in free for prompt in own))
        rows = _rows(speaker, [*prompts, *extra], blank=wording.template.blank)
        found = speaker.scores(rows)
        own_scores = [_scores(found, len(answers), by_mean) for *_, answers in prompts]
        usual = {prompt: _scores(found, len(prompt[2]), by_mean)[0] for prompt in extra}
        for i, (logs, sums) in enumerate(own_scores):
            shares = log_shares(logs)
            if calibrate:
                shares = calibrated(logs, np.stack([usual[prompt] for prompt in free[i]]))
            yield Said(puts[i], shares, sums)


def _rows(speaker: Speaker, prompts: Sequence[Prompt], *, blank: bool) -> Iterator[Asked]:
    for before, after, answers in prompts:
        for answer in answers:
            yield speaker.ask(before, after, answer, blank=blank)


def _scores(found: Iterator[Score], answers: int, by_mean: bool) -> tuple[Floats, Floats]:
    """What the next answers are judged by, and the sums of their logarithms."""
    own = list(islice(found, answers))
    sums = np.array([score.sum for score in own])
    return np.array([score.mean for score in own]) if by_mean else sums, sums


def _content_free(wording: Wording, asked: Question, own: Put) -> list[Prompt]:
    """The same prompt with no text in it to judge."""
    prompts = []
    for text in CONTENT_FREE:
        values = {name: value if name == LABELS else text for name, value in asked.values.items()}
        prompts.append((*wording.prompt(own.shots, values), asked.answers))
    return prompts


def write(
    speaker: Speaker, wording: Wording, questions: Iterable[Question], *, most: int = 32
) -> Iterator[Said]:
    """Write an answer to each question, at most so many tokens of it."""
    settings = Generation(max_new_tokens=most, stop=(wording.stop,))
    teller = Teller(
        network=speaker.network,
        tokenizer=speaker.tokenizer,
        reader=speaker.reader,
        taught=speaker.taught,
        settings=settings,
    )
    hole = speaker.sentinel if wording.template.blank and speaker.behind else None
    room = 0 if speaker.behind else min(most, speaker.room // 2)
    waiting = iter(questions)
    while some := list(islice(waiting, AT_ONCE)):
        puts = [put(speaker, wording, one, written=room) for one in some]
        found = teller.complete([_read(speaker, own, hole) for own in puts])
        for own, completed in zip(puts, found, strict=True):
            yield Said(own, NONE, NONE, _answer(speaker, completed.completions[0], hole))


def _read(speaker: Speaker, own: Put, hole: int | None) -> str:
    """What a model that writes is given of a prompt; a blank is written as a sentinel."""
    if hole is None:
        return own.before.rstrip(" ")
    return f"{own.before}{speaker.tokenizer.backend.id_to_token(hole)}{own.after}"


def _answer(speaker: Speaker, written: Completion, hole: int | None) -> str:
    """What was written; of holes that are filled, what belongs into the first."""
    if hole is None:
        return written.text.strip()
    tokenizer = speaker.tokenizer
    ids = between(written.tokens, hole, set(tokenizer.sentinel_ids))
    return tokenizer.decode(ids, skip_specials=True).strip()
