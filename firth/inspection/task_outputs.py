"""Outputs of fine-tuned models to explain: a label or number, an answer span, the tag of a word.

S  sequences     N  tokens of all sequences     P  predicted positions     K  labels
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from firth.inspection.explained_output import (
    ExplainedOutput,
    InputRow,
    Score,
    log_odds,
    text_tokens,
)
from firth.model import Model
from firth.models.language_model import LanguageNetwork
from firth.tasks.classify import ClassifyTask
from firth.tasks.ensembles import resolve_task, task_template
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.examples import AnswerSpan, LabelledExample, QuestionExample
from firth.tasks.span import SpanTask
from firth.tasks.tag import OUTSIDE, TagTask
from firth.tasks.task import EncodedExample, Example, Task, TaskMetadata
from firth.utils.errors import MismatchError, UsageError
from firth.utils.rng import Floats

Text = str | tuple[str, str]  # one text, or a pair: two sentences, a question and its context


class ChosenOutput(NamedTuple):
    """What is explained of an encoded example."""

    name: str
    row: int  # the sequence, if the example has several
    positions: Sequence[int]
    score: Score


def task_output(model: Model, text: Text, target: str | None = None) -> ExplainedOutput:
    """Return the output of a fine-tuned model that is its prediction, or `target`."""
    task, metadata = resolve_task(model, None)
    example = _example(task, text)
    template = task_template(model, task, metadata)
    [item] = task.encode([example], template, metadata)
    with torch.no_grad():
        [output] = task.outputs(model.network, [item], metadata)
    answer = task.answer(example, item, output, metadata)
    if isinstance(task, SpanTask):
        chosen = _choose_span(task, template, metadata, example, answer, target)
    elif isinstance(task, TagTask):
        chosen = _choose_tag(example.words, item, output, metadata, target)
    else:
        chosen = _choose_label(output, metadata, target)
    row = item.rows[chosen.row]
    return ExplainedOutput(
        name=chosen.name,
        tokenizer=template.tokenizer,
        row=InputRow(row.tokens, row.segments, np.array(chosen.positions)),
        score=chosen.score,
        is_text=text_tokens(template.tokenizer, row.tokens),
        attention="causal" if model.config.architecture == "decoder" else "bidirectional",
        for_labels=True,
        num_truncated=item.cut,
    )


def _example(task: Task, text: Text) -> Example:
    texts = (text,) if isinstance(text, str) else tuple(text)
    sizes = {"classify": (1,), "pair": (2,), "regress": (1, 2), "tag": (1,), "span": (2,)}
    if task.name not in sizes:
        able = ", ".join(sizes)
        raise MismatchError(f"Outputs of {task.name} are not explained, only those of {able}.")
    if len(texts) not in sizes[task.name]:
        inputs = "two texts: add `text_b`"
        inputs = "a text and a question: add `question`" if task.name == "span" else inputs
        needs = "one text" if 1 in sizes[task.name] else inputs
        raise UsageError(f"The input of a {task.name} model is {needs}.")
    if isinstance(task, SpanTask):
        return QuestionExample(id="", question=texts[0], context=texts[1])
    if isinstance(task, ClassifyTask):
        return LabelledExample(text=texts[0], second=texts[1] if len(texts) == 2 else None)
    return task.example(texts[0])


# ---- labels and numbers -------------------------------------------------------------------------


def _choose_label(output: Floats, metadata: TaskMetadata, target: str | None) -> ChosenOutput:
    """Choose a label, by default the most probable one; or the number of a regression."""
    label = int(output.argmax()) if target is None else _label_index(metadata, target)
    name = f"log-odds of the label {metadata.labels[label]}"
    if metadata.label_type == "number":
        name = "predicted number"
    return ChosenOutput(name, 0, [0], partial(_label_score, label, metadata.label_type))


def _label_index(metadata: TaskMetadata, target: str) -> int:
    if metadata.label_type == "number":
        raise UsageError(f"This model predicts a number, so it has no label {target!r}.")
    if target not in metadata.labels:
        raise UsageError(f"There is no label {target!r}; there are {', '.join(metadata.labels)}.")
    return metadata.labels.index(target)


def _label_score(
    label: int,
    label_type: str,
    network: LanguageNetwork,
    hidden: Tensor,
    starts: Tensor,
    positions: Tensor,
) -> Tensor:
    logits = network.label_logits(hidden, starts).float()  # (S, K)
    if label_type == "one":
        return log_odds(logits, starts.new_full((len(logits),), label))
    return logits[:, label]  # the log-odds of one of several labels, or a number


# ---- answer spans -------------------------------------------------------------------------------


def _choose_span(
    task: SpanTask,
    template: InputTemplate,
    metadata: TaskMetadata,
    example: QuestionExample,
    answer: dict[str, Any],
    target: str | None,
) -> ChosenOutput:
    """Choose the predicted answer, or the first occurrence of `target` in the context."""
    text, start = answer["answer"], answer["begin"]
    if target is not None:
        text, start = target, example.context.find(target)
        if start < 0 or not target.strip():
            raise UsageError(f"The context does not contain the answer {target!r}.")
    answers = (AnswerSpan(text=text, start=start),) if text else ()
    marked = replace(example, answers=answers, impossible=not answers)
    [item] = task.encode([marked], template, metadata)
    window = next((i for i, ends in enumerate(item.target) if ends != (0, 0)), 0)
    what = f'the answer "{text}"' if text else "no answer"
    name = f"sum of the log-odds of the start and the end of {what}"
    return ChosenOutput(name, window, item.target[window], _span_score)


def _span_score(
    network: LanguageNetwork, hidden: Tensor, starts: Tensor, positions: Tensor
) -> Tensor:
    logits = network.label_logits(hidden, starts).float()  # (N, 2)
    rows = logits.split(starts.diff().tolist())
    padded = pad_sequence(rows, batch_first=True, padding_value=-torch.inf)  # (S, T, 2)
    places = positions - starts[:-1, None]  # (S, 2)
    return log_odds(padded[..., 0], places[:, 0]) + log_odds(padded[..., 1], places[:, 1])


# ---- tags ---------------------------------------------------------------------------------------


def _choose_tag(
    words: Sequence[str],
    item: EncodedExample,
    output: Floats,
    metadata: TaskMetadata,
    target: str | None,
) -> ChosenOutput:
    """Choose the predicted tag of the word `target`, by default of the first word with one."""
    tags = [metadata.labels[id] for id in output.argmax(-1)]
    named = [i for i, tag in enumerate(tags) if tag != OUTSIDE]
    if target is not None and target not in words:
        raise UsageError(f"The text has no word {target!r}; its words are {' '.join(words)}.")
    word = words.index(target) if target is not None else (named or [0])[0]
    for number, aligned in enumerate(item.detail.rows):
        for place in aligned.places[aligned.words == word]:
            name = f'log-odds of the tag {tags[word]} of "{words[word]}"'
            score = partial(_tag_score, metadata.labels.index(tags[word]))
            return ChosenOutput(name, number, [int(place)], score)
    raise UsageError(f"The word {words[word]!r} has no token, so its tag cannot be explained.")


def _tag_score(
    tag: int, network: LanguageNetwork, hidden: Tensor, starts: Tensor, positions: Tensor
) -> Tensor:
    logits = network.label_logits(hidden, starts).float()  # (N, K)
    return log_odds(logits[positions[:, 0]], starts.new_full((len(positions),), tag))
