"""Label heads of Hugging Face families: sequence and token classification, QA, multiple choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firth.utils.errors import InputError

MAX_LABELS = 100_000  # of a classifier without names for them
PROBLEMS = {
    "one": "single_label_classification",
    "many": "multi_label_classification",
    "number": "regression",
}


@dataclass(frozen=True, kw_only=True)
class TaskHead:
    """A Hugging Face class with a label head."""

    cls: str
    names: Mapping[str, str]  # our modules in the head -> theirs
    pooler: bool = False  # the head takes the output of the pooler
    shape: Mapping[str, Any] = field(default_factory=dict)  # our config fields for the head


def bert_heads(cls: str, *, pooler: bool = True) -> dict[str, TaskHead]:
    """BERT's heads: one linear layer, for sequences after the pooler."""
    classifier = {"output": "classifier"}
    return {
        "classify": TaskHead(
            cls=f"{cls}ForSequenceClassification", names=classifier, pooler=pooler
        ),
        "choose": TaskHead(cls=f"{cls}ForMultipleChoice", names=classifier, pooler=pooler),
        "tag": TaskHead(cls=f"{cls}ForTokenClassification", names=classifier),
        "span": TaskHead(cls=f"{cls}ForQuestionAnswering", names={"output": "qa_outputs"}),
    }


def roberta_heads(
    cls: str, layer: str, output: str, *, activation: str, choose: bool = False
) -> dict[str, TaskHead]:
    """RoBERTa's heads: BERT's, with a dense layer before the classifier.

    With `choose`, multiple choice has the dense layer, too.
    """
    names = {"layers.0": layer, "output": output}
    shape = {"label_layers": 1, "label_activation": activation}
    head = TaskHead(cls=f"{cls}ForSequenceClassification", names=names, shape=shape)
    heads = {**bert_heads(cls), "classify": head}
    if choose:
        heads["choose"] = TaskHead(cls=f"{cls}ForMultipleChoice", names=names, shape=shape)
    return heads


def decoder_heads(cls: str) -> dict[str, TaskHead]:
    """A decoder's head: one linear layer without bias, on the last token."""
    last = {"pooling": "last", "label_bias": False}
    names = {"output": "score"}
    return {"classify": TaskHead(cls=f"{cls}ForSequenceClassification", names=names, shape=last)}


def read_labels(theirs: Mapping[str, Any], head: str) -> dict[str, Any]:
    """Read the labels and their type from their config.

    >>> read_labels({"id2label": {"1": "good", "0": "bad"}}, "classify")
    {'labels': ('bad', 'good'), 'label_type': 'one'}
    """
    if head not in ("classify", "tag"):
        return {}
    named = theirs.get("id2label") or {}
    count = len(named) or theirs.get("num_labels", 2)
    if not isinstance(count, int) or not 0 < count <= MAX_LABELS:
        raise InputError(f"num_labels must be between 1 and {MAX_LABELS:,}, not {count!r:.80}.")
    labels = {int(id): str(label) for id, label in named.items()}
    problems = {theirs: ours for ours, theirs in PROBLEMS.items()}
    default = "number" if count == 1 and head == "classify" else "one"
    return {
        "labels": tuple(labels.get(id, f"LABEL_{id}") for id in range(count)),
        "label_type": problems.get(theirs.get("problem_type") or "", default),
    }


def write_labels(labels: tuple[str, ...], label_type: str) -> dict[str, Any]:
    """Return the config fields of labels and their type, the inverse of `read_labels`."""
    if not labels:
        return {}
    return {
        "id2label": {str(id): label for id, label in enumerate(labels)},
        "label2id": {label: id for id, label in enumerate(labels)},
        "problem_type": PROBLEMS[label_type],
    }
