"""Extractive question answering."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from firth.data.windows import window_spans
from firth.metrics.bootstrap import Metric
from firth.metrics.question_answering import normalise_answer, squad_metrics
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.inputs import InputTemplate, Span
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.examples import QuestionExample
from firth.tasks.readers.squad import read_questions
from firth.tasks.task import Answer, EncodedExample, Items, Task, TaskMetadata
from firth.training.losses import label_logits
from firth.utils.rng import Floats

MAX_QUESTION_TOKENS = 64
OVERLAP = 128  # tokens shared by consecutive windows
MAX_ANSWER_TOKENS = 30
MAX_SCORE = 1e9  # its negative is the score of an answer in an empty context


class ContextWindow(NamedTuple):
    """The part of a context in one sequence."""

    begin: int  # position of its first token in the sequence
    spans: tuple[Span, ...]  # characters of its tokens in the context


class SpanTask(Task):
    """Predict begin and end of the answer; both at the first token mean no answer.

    A long context is split into overlapping windows (Devlin et al. 2019).
    """

    name = "span"
    about = "extractive question answering, also with unanswerable questions"
    head = "span"
    metric = "f1"
    columns = "SQuAD 1.1 or 2.0 · question, context, answers"
    token_level = True
    default_max_length = 384
    options = MappingProxyType({"unanswered": "bool", "threshold": "float"})

    def read(self, file: TaskFile) -> Iterator[QuestionExample]:
        return read_questions(file)

    def metadata(
        self, examples: Sequence[QuestionExample], length: int, options: Mapping[str, Any]
    ) -> TaskMetadata:
        plain = super().metadata(examples, length, options)
        unanswered = any(example.impossible for example in examples)
        return replace(plain, options={"unanswered": unanswered, "threshold": 0.0, **plain.options})

    def default_options(self, config: ModelConfig) -> dict[str, Any]:
        return {"unanswered": False, "threshold": 0.0}

    def encode(
        self, examples: Sequence[QuestionExample], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        questions = template.tokenize([example.question for example in examples])
        contexts = list(dict.fromkeys(example.context for example in examples))  # shared by many
        found = dict(zip(contexts, template.tokenize(contexts, offsets=True), strict=True))
        items = []
        for example, question in zip(examples, questions, strict=True):
            context = found[example.context]
            truncated = question.part(0, min(MAX_QUESTION_TOKENS, template.room(pair=True) // 2))
            room = max(1, template.room(pair=True) - len(truncated.tokens))
            stride = room - min(OVERLAP, room // 2)
            parts = window_spans(len(context.tokens), room, stride)
            windows = [context.part(*ends) for ends in parts]
            rows = tuple(template.two(truncated, window) for window in windows)
            detail = [
                ContextWindow(row.second, w.spans) for row, w in zip(rows, windows, strict=True)
            ]
            targets = None
            if example.answers or example.impossible:
                tokens = _tokens(example, context.spans)
                targets = [
                    _target(tokens, ends, row.second) for ends, row in zip(parts, rows, strict=True)
                ]
            cut = len(question.tokens) - len(truncated.tokens)
            items.append(EncodedExample(rows, targets, cut, detail))
        return items

    def targets(
        self, items: Items, batch: Batch, metadata: TaskMetadata
    ) -> dict[str, PredictionTargets]:
        ends = np.array([ends for item in items for ends in item.target])  # (S, 2)
        places, none = batch.inputs.starts[:-1, None] + ends, np.zeros(len(ends), dtype=np.int64)
        names = enumerate(("begin", "end"))
        return {name: PredictionTargets(places[:, i], none) for i, name in names}

    def outputs(
        self, network: LanguageNetwork, items: Items, metadata: TaskMetadata
    ) -> list[Floats]:
        """Compute begin and end logits of each token of an item's sequences."""
        batch = self.batch(items, metadata, network.config)
        scores = label_logits(network, batch).double().cpu().numpy()  # (N, 2)
        return np.split(scores, np.cumsum([item.size for item in items])[:-1])

    def answer(
        self, example: QuestionExample, item: EncodedExample, output: Floats, metadata: TaskMetadata
    ) -> Answer:
        """Choose the best span of all windows, with its characters in the context."""
        best, found, none, at, options = -np.inf, (0, 0), np.inf, 0, metadata.options
        for row, window in zip(item.rows, item.detail, strict=True):
            own = output[at : at + len(row.tokens)]
            at += len(row.tokens)
            none = min(none, float(own[0].sum()))
            inside = own[window.begin : window.begin + len(window.spans)]
            if not len(inside):
                continue
            score, first, last = best_span(inside[:, 0], inside[:, 1])
            if score > best:
                best, found = score, (window.spans[first][0], window.spans[last][1])
        begin, end = trim_span(example.context, *found)
        lacks = begin == end or (options["unanswered"] and none - best > options["threshold"])
        answer = {
            "answer": "" if lacks else example.context[begin:end],
            "begin": 0 if lacks else begin,
            "end": 0 if lacks else end,
            "score": float(max(best, -MAX_SCORE)),
            "id": example.id,
        }
        if options["unanswered"]:
            answer |= {"none": none, "otherwise": example.context[begin:end]}
        return answer

    def metrics(
        self, examples: Sequence[QuestionExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        gold = [[answer.text for answer in example.answers] for example in examples]
        return squad_metrics(gold, [answer["answer"] for answer in answers])

    def calibrate(
        self, metadata: TaskMetadata, examples: Sequence[QuestionExample], answers: Sequence[Answer]
    ) -> TaskMetadata:
        """Set the no-answer threshold that gives the best exact match on these examples."""
        if not metadata.options["unanswered"]:
            return metadata
        return replace(
            metadata, options=metadata.options | {"threshold": _threshold(examples, answers)}
        )


def _tokens(example: QuestionExample, spans: Sequence[Span]) -> Span | None:
    """The first and last token of the answer in the context."""
    if not example.answers or not spans:
        return None
    answer = example.answers[0]
    begins, ends = np.array(spans).T
    touched = np.flatnonzero(
        (ends > answer.start) & (begins < answer.start + len(answer.text)) & (ends > begins)
    )
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


def _target(found: Span | None, window: Span, begin: int) -> Span:
    """The positions of both tokens in a sequence; (0, 0) if the window lacks the answer."""
    if found is None or found[0] < window[0] or found[1] >= window[1]:
        return 0, 0
    return begin + found[0] - window[0], begin + found[1] - window[0]


def trim_span(text: str, begin: int, end: int) -> Span:
    """Extend a span to include combining marks and strip white space around it.

    Some tokenizers drop accents from their offsets, or include the space before a word.

    >>> trim_span("a cafe\u0301!", 1, 6)
    (2, 7)
    """
    while end < len(text) and end > begin and unicodedata.category(text[end]).startswith("M"):
        end += 1
    inside = text[begin:end]
    if not inside.strip():
        return begin, begin
    return begin + len(inside) - len(inside.lstrip()), begin + len(inside.rstrip())


def best_span(begins: Floats, ends: Floats) -> tuple[float, int, int]:
    """Find the span with the highest sum of begin and end logits, with end >= begin.

    >>> best_span(np.array([0.0, 3.0, 1.0]), np.array([5.0, 0.0, 1.0]))
    (5.0, 0, 0)
    """
    best = (-np.inf, 0, 0)
    for more in range(min(MAX_ANSWER_TOKENS, len(begins))):
        sums = begins[: len(begins) - more] + ends[more:]
        at = int(sums.argmax())
        if sums[at] > best[0]:
            best = (float(sums[at]), at, at + more)
    return best


def _threshold(examples: Sequence[QuestionExample], answers: Sequence[Answer]) -> float:
    """The no-answer threshold that answers most questions correctly."""
    margins = np.array([answer["none"] - answer["score"] for answer in answers])
    right = np.zeros(len(examples))
    for i, (example, answer) in enumerate(zip(examples, answers, strict=True)):
        golds = {normalise_answer(gold.text) for gold in example.answers}
        right[i] = normalise_answer(answer["otherwise"]) in golds
    empty = np.array([not example.answers for example in examples], dtype=np.float64)
    order = np.argsort(margins)
    # Questions below the threshold get their span, the others no answer.
    gains = np.concatenate([[0.0], np.cumsum((right - empty)[order])])
    count = int(gains.argmax())
    edges = np.concatenate([[margins.min() - 1.0], margins[order]]) if len(margins) else [0.0]
    return float(edges[count])
