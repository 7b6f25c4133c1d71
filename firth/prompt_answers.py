"""What a prompted model says, in the words of its task, and how right it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from firth.inference.answering import Said
from firth.tasks.task import Answer, Example

Right = dict[str, float]  # how right an answer is, by each figure; nothing where no one knows


def _labelled(example: Example, said: Said, words: Mapping[str, str]) -> tuple[Answer, Right]:
    labels, shares = list(words), np.exp(said.logs)
    scores = dict(zip(labels, shares.tolist(), strict=True))
    best = labels[said.best]
    answer = {"label": best, "word": words[best], "score": scores[best], "scores": scores}
    if example.label is None:
        return answer, {}
    return answer | {"gold": example.label}, {"accuracy": float(best == example.label)}


def _chosen(example: Example, said: Said, words: Mapping[str, str]) -> tuple[Answer, Right]:
    """The likeliest choice, and the likeliest for each of its bytes, as harnesses report both.

    So do those of Gao et al. (2021, lm-evaluation-harness): acc and acc_norm.
    """
    sizes = np.array([len(choice.encode()) for choice in example.choices])
    by_byte = int((said.sums / sizes).argmax())
    answer = {
        "choice": said.best,
        "text": example.choices[said.best],
        "choices": list(example.choices),
        "scores": np.exp(said.logs).tolist(),
        "choice_by_byte": by_byte,
    }
    if example.label is None:
        return answer, {}
    right = {"accuracy": said.best == example.label, "accuracy_norm": by_byte == example.label}
    return answer | {"gold": example.label}, {name: float(value) for name, value in right.items()}


def _written(example: Example, said: Said, words: Mapping[str, str]) -> tuple[Answer, Right]:
    answer = {"source": example.source, "text": said.text}
    if example.target is None:
        return answer, {}
    exact = plain_answer(said.text) == plain_answer(example.target)
    return answer | {"gold": example.target, "exact": exact}, {"exact": float(exact)}


def plain_answer(text: str) -> str:
    """What counts of an answer: not its case, its white space or a full stop at its end.

    >>> plain_answer(" Loutre  de mer. "), plain_answer("-5")
    ('loutre de mer', '-5')
    """
    return " ".join(text.casefold().split()).removesuffix(".").rstrip()


JUDGES: dict[str, Callable[[Any, Said, Mapping[str, str]], tuple[Answer, Right]]] = {
    "classify": _labelled,
    "pair": _labelled,
    "choice": _chosen,
    "seq2seq": _written,
}


def guess(task: str, asked: Sequence[Example]) -> float | None:
    """How often the commonest label, or any choice, is right by itself."""
    if task == "seq2seq":
        return None
    known = [example for example in asked if example.label is not None]
    if not known:
        return None
    if task == "choice":
        return float(np.mean([1 / len(example.choices) for example in known]))
    return Counter(example.label for example in known).most_common(1)[0][1] / len(known)
