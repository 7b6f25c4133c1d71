"""Heads for labels as the families store them: rows for the tables of `Family`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROBLEMS = {
    "one": "single_label_classification",
    "many": "multi_label_classification",
    "number": "regression",
}


@dataclass(frozen=True, kw_only=True)
class TaskHead:
    """A class of theirs that has one head for labels."""

    cls: str
    names: Mapping[str, str]  # of the modules in our head
    pooler: bool = False  # the network's pooler stands before it
    shape: Mapping[str, Any] = field(default_factory=dict)  # what our configuration then says


def plain(cls: str, *, pooler: bool = True) -> dict[str, TaskHead]:
    """BERT's: one matrix, for a sequence behind the pooler."""
    classifier = {"output": "classifier"}
    return {
        "classify": TaskHead(
            cls=f"{cls}ForSequenceClassification", names=classifier, pooler=pooler
        ),
        "choose": TaskHead(cls=f"{cls}ForMultipleChoice", names=classifier, pooler=pooler),
        "tag": TaskHead(cls=f"{cls}ForTokenClassification", names=classifier),
        "span": TaskHead(cls=f"{cls}ForQuestionAnswering", names={"output": "qa_outputs"}),
    }


def layered(
    cls: str, layer: str, output: str, *, activation: str, choose: bool = False
) -> dict[str, TaskHead]:
    """RoBERTa's: a layer before the matrix that classifies; with `choose`, one that chooses too."""
    names = {"layers.0": layer, "output": output}
    shape = {"label_layers": 1, "label_activation": activation}
    head = TaskHead(cls=f"{cls}ForSequenceClassification", names=names, shape=shape)
    heads = {**plain(cls), "classify": head}
    if choose:
        heads["choose"] = TaskHead(cls=f"{cls}ForMultipleChoice", names=names, shape=shape)
    return heads


def scored(cls: str) -> dict[str, TaskHead]:
    """A decoder's: one matrix without a bias, at the last token."""
    last = {"pooling": "last", "label_bias": False}
    names = {"output": "score"}
    return {"classify": TaskHead(cls=f"{cls}ForSequenceClassification", names=names, shape=last)}


def read_labels(theirs: Mapping[str, Any], head: str) -> dict[str, Any]:
    """Which labels a file of theirs names, and what they are to a text.

    >>> read_labels({"id2label": {"1": "good", "0": "bad"}}, "classify")
    {'labels': ('bad', 'good'), 'labelling': 'one'}
    """
    if head not in ("classify", "tag"):
        return {}
    named = theirs.get("id2label") or {}
    count = len(named) or theirs.get("num_labels", 2)
    labels = {int(id): str(label) for id, label in named.items()}
    problems = {theirs: ours for ours, theirs in PROBLEMS.items()}
    usual = "number" if count == 1 and head == "classify" else "one"
    return {
        "labels": tuple(labels.get(id, f"LABEL_{id}") for id in range(count)),
        "labelling": problems.get(theirs.get("problem_type") or "", usual),
    }


def write_labels(labels: tuple[str, ...], labelling: str) -> dict[str, Any]:
    """What `read_labels` reads."""
    if not labels:
        return {}
    return {
        "id2label": {str(id): label for id, label in enumerate(labels)},
        "label2id": {label: id for id, label in enumerate(labels)},
        "problem_type": PROBLEMS[labelling],
    }
