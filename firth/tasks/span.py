"""An answer out of a text: extractive question answering."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from firth.draws import Floats
from firth.metrics.answers import answers as answer_figures
from firth.metrics.answers import normalise_answer
from firth.metrics.bootstrap import Figure
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch, Prediction
from firth.tasks.frame import Frame, Span
from firth.tasks.reading.examples import Question
from firth.tasks.reading.squad import each_question, read_questions
from firth.tasks.task import NONE, Answer, Columns, Facts, Item, Task, on_empty, reading
from firth.text.readers import Bad
from firth.training.losses import label_scores

QUESTION = 64  # tokens of a question, at most
OVERLAP = 128  # tokens that two windows of a text share
LONGEST = 30  # tokens of an answer
LEAST = 1e9  # minus this is the score of an answer where there is no text to find one in


class Window(NamedTuple):
    """The part of a text that stands in one sequence."""

    begin: int  # its first token in the sequence
    spans: tuple[Span, ...]  # of its tokens, in the text


class Ask(Task):
    """Where in the text the answer begins and ends; the first token of all: there is none.

    A text too long for one sequence is read through windows that overlap (Devlin et al. 2019).
    """

    name = "span"
    about = "the part of a text that answers a question, or that there is none"
    head = "span"
    metric = "f1"
    columns = "SQuAD 1.1 or 2.0"
    tokenwise = True
    length = 384
    options = MappingProxyType({"unanswered": "bool", "threshold": "float"})

    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NONE,
    ) -> list[Question]:
        empty = on_empty(labelled)
        return read_questions(path, need_answers=labelled, format=format, on_empty=empty)

    def each(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NONE,
        bad: Bad | None = None,
    ) -> Iterator[Question]:
        return each_question(path, format=format, bad=bad)

    def facts(self, examples: Sequence[Question], length: int, options: Mapping[str, Any]) -> Facts:
        plain = super().facts(examples, length, options)
        unanswered = any(example.impossible for example in examples)
        return replace(plain, options={"unanswered": unanswered, "threshold": 0.0, **plain.options})

    def usual_options(self, config: ModelConfig) -> dict[str, Any]:
        return {"unanswered": False, "threshold": 0.0}

    def encode(self, examples: Sequence[Question], frame: Frame, facts: Facts) -> list[Item]:
        questions = frame.texts([example.question for example in examples])
        contexts = list(dict.fromkeys(example.context for example in examples))  # shared by many
        found = dict(zip(contexts, frame.texts(contexts, places=True), strict=True))
        items = []
        for example, question in zip(examples, questions, strict=True):
            context = found[example.context]
            asked = question.part(0, min(QUESTION, frame.room(pair=True) // 2))
            room = frame.room(pair=True) - len(asked.tokens)
            parts = windowed(len(context.tokens), room)
            windows = [context.part(*ends) for ends in parts]
            rows = tuple(frame.two(asked, window) for window in windows)
            detail = [Window(row.second, w.spans) for row, w in zip(rows, windows, strict=True)]
            targets = None
            if example.answers or example.impossible:
                tokens = _tokens(example, context.spans)
                targets = [
                    _target(tokens, ends, row.second) for ends, row in zip(parts, rows, strict=True)
                ]
            cut = len(question.tokens) - len(asked.tokens)
            items.append(Item(rows, targets, cut, detail))
        return items

    def batch(self, items: Sequence[Item], facts: Facts, config: ModelConfig) -> Batch:
        batch = reading([row for item in items for row in item.rows], config)
        if any(item.target is None for item in items):
            return batch
        ends = np.array([ends for item in items for ends in item.target])  # (S, 2)
        places, none = batch.inputs.starts[:-1, None] + ends, np.zeros(len(ends), dtype=np.int64)
        wanted = {
            "begin": Prediction(places[:, 0], none),
            "end": Prediction(places[:, 1], none),
        }
        return replace(batch, predictions=wanted)

    def outputs(self, network: Transformer, items: Sequence[Item], facts: Facts) -> list[Floats]:
        """The scores of beginning and of ending at each token of an item's sequences."""
        batch = self.batch(items, facts, network.config)
        scores = label_scores(network, batch).double().cpu().numpy()  # (N, 2)
        return np.split(scores, np.cumsum([item.size for item in items])[:-1])

    def answers(
        self,
        examples: Sequence[Question],
        items: Sequence[Item],
        outputs: Sequence[Floats],
        facts: Facts,
        frame: Frame,
    ) -> list[Answer]:
        return [
            _answer(example, item, scores, facts.options)
            for example, item, scores in zip(examples, items, outputs, strict=True)
        ]

    def figures(
        self, examples: Sequence[Question], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, Figure]:
        gold = [[answer.text for answer in example.answers] for example in examples]
        return answer_figures(gold, [answer["answer"] for answer in answers])

    def tuned(self, facts: Facts, examples: Sequence[Question], answers: Sequence[Answer]) -> Facts:
        """The margin by which no answer must win, where these examples do best with it."""
        if not facts.options["unanswered"]:
            return facts
        return replace(facts, options=facts.options | {"threshold": _threshold(examples, answers)})


def windowed(tokens: int, room: int, overlap: int = OVERLAP) -> list[tuple[int, int]]:
    """Where windows begin and end in a text of so many tokens.

    >>> windowed(10, room=4, overlap=2), windowed(3, room=4)
    ([(0, 4), (2, 6), (4, 8), (6, 10)], [(0, 3)])
    """
    room = max(1, room)
    step = room - min(overlap, room // 2)
    count = 1 + max(0, -(-(tokens - room) // step))
    return [(i * step, min(tokens, i * step + room)) for i in range(count)]


def _tokens(example: Question, spans: Sequence[Span]) -> Span | None:
    """The first and the last token of the answer, counted through the text."""
    if not example.answers or not spans:
        return None
    answer = example.answers[0]
    begins, ends = np.array(spans).T
    touched = np.flatnonzero(
        (ends > answer.start) & (begins < answer.start + len(answer.text)) & (ends > begins)
    )
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


def _target(found: Span | None, window: Span, begin: int) -> Span:
    """The same two tokens in a sequence whose window begins there; (0, 0): it is not in it."""
    if found is None or found[0] < window[0] or found[1] >= window[1]:
        return 0, 0
    return begin + found[0] - window[0], begin + found[1] - window[0]


def _answer(example: Question, item: Item, scores: Floats, options: Mapping[str, Any]) -> Answer:
    """The best span of all windows, with its characters in the text."""
    best, found, none, at = -np.inf, (0, 0), np.inf, 0
    for row, window in zip(item.rows, item.detail, strict=True):
        own = scores[at : at + len(row.tokens)]
        at += len(row.tokens)
        none = min(none, float(own[0].sum()))
        inside = own[window.begin : window.begin + len(window.spans)]
        if not len(inside):
            continue
        score, first, last = best_span(inside[:, 0], inside[:, 1])
        if score > best:
            best, found = score, (window.spans[first][0], window.spans[last][1])
    begin, end = whole(example.context, *found)
    lacks = begin == end or (options["unanswered"] and none - best > options["threshold"])
    best = max(best, -LEAST)
    answer = {
        "answer": "" if lacks else example.context[begin:end],
        "begin": 0 if lacks else begin,
        "end": 0 if lacks else end,
        "score": float(best),
        "id": example.id,
    }
    if options["unanswered"]:
        answer |= {"none": none, "otherwise": example.context[begin:end]}
    return answer


def whole(text: str, begin: int, end: int) -> Span:
    """Characters with the marks that belong to the last of them, and without space around them.

    Some tokenizers leave accents out of their tokens, and count the space before a word in.

    >>> whole("a cafe\u0301!", 1, 6)
    (2, 7)
    """
    while end < len(text) and end > begin and unicodedata.category(text[end]).startswith("M"):
        end += 1
    inside = text[begin:end]
    if not inside.strip():
        return begin, begin
    return begin + len(inside) - len(inside.lstrip()), begin + len(inside.rstrip())


def best_span(begins: Floats, ends: Floats) -> tuple[float, int, int]:
    """The span with the highest sum of scores that does not end before it begins.

    >>> best_span(np.array([0.0, 3.0, 1.0]), np.array([5.0, 0.0, 1.0]))
    (5.0, 0, 0)
    """
    best = (-np.inf, 0, 0)
    for more in range(min(LONGEST, len(begins))):
        sums = begins[: len(begins) - more] + ends[more:]
        at = int(sums.argmax())
        if sums[at] > best[0]:
            best = (float(sums[at]), at, at + more)
    return best


def _threshold(examples: Sequence[Question], answers: Sequence[Answer]) -> float:
    """The margin of no answer over the best one at which most questions are answered rightly."""
    margins = np.array([answer["none"] - answer["score"] for answer in answers])
    right = np.array(
        [
            any(
                normalise_answer(answer["otherwise"]) == normalise_answer(gold.text)
                for gold in example.answers
            )
            for example, answer in zip(examples, answers, strict=True)
        ],
        dtype=np.float64,
    )
    empty = np.array([not example.answers for example in examples], dtype=np.float64)
    order = np.argsort(margins)
    # Answer the questions with the smallest margins; say of the others that there is none.
    gains = np.concatenate([[0.0], np.cumsum((right - empty)[order])])
    count = int(gains.argmax())
    edges = np.concatenate([[margins.min() - 1.0], margins[order]]) if len(margins) else [0.0]
    return float(edges[count])
