"""What every task is: a file format, a head, a metric, and the way from an example to an answer.

read      a file            -> examples
facts     examples          -> what must be known of them, which travels with the model
encode    examples          -> items: sequences of tokens, with what is asked of them
batch     items             -> a batch that a network reads
outputs   a network, items  -> numbers for each item; those of several models can be averaged
answers   outputs           -> what a person wants to know
figures   answers           -> what they are worth
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from firth.draws import Longs
from firth.errors import InputError, MismatchError, Misuse
from firth.metrics.bootstrap import Figure
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch, Packed, Prediction
from firth.tasks.frame import Frame, Framed
from firth.tasks.reading.columns import OnEmpty
from firth.text.readers import Bad
from firth.training.plateau import entropy

Answer = dict[str, Any]
Example = Any  # one of the dataclasses of `examples.py`
Columns = Mapping[str, Any]  # the role of a column -> its name in a file
NONE: Columns = MappingProxyType({})
EVERY = ("encoder", "decoder", "encoder-decoder")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a task must know of its data; it is kept with the model."""

    task: str
    labels: tuple[str, ...] = ()
    labelling: str = "one"  # a text has one label, many, or a number
    length: int = 0  # of the longest sequence; 0: the model's context
    options: dict[str, Any] = field(default_factory=dict)  # of the task

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON knows them."""
        return {**asdict(self), "labels": list(self.labels)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Facts:
        """The facts from what JSON gave."""
        known = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) - known or "task" not in values:
            raise InputError(f"The facts of a task are {', '.join(sorted(known))}.")
        return cls(**{**values, "labels": tuple(values.get("labels", ()))})


@dataclass(frozen=True)
class Item:
    """An example as a network reads it."""

    rows: tuple[Framed, ...]  # one sequence for most tasks
    target: Any = None
    cut: int = 0  # tokens that did not fit
    detail: Any = None  # what leads from the network's output back to the text

    @property
    def size(self) -> int:
        """How many tokens it has."""
        return sum(len(row.tokens) for row in self.rows)


class Task(ABC):
    """One kind of work."""

    name: ClassVar[str]
    about: ClassVar[str]
    head: ClassVar[str]  # that answers
    metric: ClassVar[str]  # by which the best model is chosen; "loss": the smallest
    architectures: ClassVar[tuple[str, ...]] = EVERY
    joins: ClassVar[bool] = False  # an encoder joined to a decoder can do it
    columns: ClassVar[str] = ""  # of its files, for people
    roles: ClassVar[tuple[str, ...]] = ()  # of columns, which may have other names in a file
    length: ClassVar[int] = 512  # of what is read, in tokens, where nobody says how many
    options: ClassVar[Mapping[str, str]] = NONE  # what may be set of it, and of what kind that is
    tells_apart: ClassVar[str] = ""  # by labels: "examples" or "words"
    numbers: ClassVar[bool] = False  # it says numbers where others say labels
    writes: ClassVar[bool] = False  # texts, which have no mean
    tokenwise: ClassVar[bool] = False  # what it says, it says of each token
    why: ClassVar[str] = ""  # an architecture cannot do it, in a sentence

    @abstractmethod
    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NONE,
    ) -> list[Example]:
        """The examples in a file; without `labelled`, labels may be missing and texts empty."""

    def each(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NONE,
        bad: Bad | None = None,
    ) -> Iterator[Example]:
        """The examples in a file one after the other, to be answered: nobody looks at labels.

        A row that cannot be read is told to `bad`, and the others follow.
        """
        return iter(self.read(path, labelled=False, format=format, columns=columns))

    def example(self, text: str) -> Example:
        """The example that a text is, where a task asks about one text."""
        raise Misuse(f"{self.name} asks about more than one text: name a file of them with --data.")

    def facts(self, examples: Sequence[Example], length: int, options: Mapping[str, Any]) -> Facts:
        """What must be known of the training data."""
        return Facts(task=self.name, length=length, options=dict(options))

    def check(self, facts: Facts, examples: Sequence[Example], path: Path) -> None:  # noqa: B027
        """Refuse other data that does not fit the facts."""

    @abstractmethod
    def encode(self, examples: Sequence[Example], frame: Frame, facts: Facts) -> list[Item]:
        """The examples in tokens."""

    @abstractmethod
    def batch(self, items: Sequence[Item], facts: Facts, config: ModelConfig) -> Batch:
        """Items as one batch, with what is asked if their targets are known."""

    @abstractmethod
    def outputs(self, network: Transformer, items: Sequence[Item], facts: Facts) -> list[Any]:
        """What the network says of each item."""

    @abstractmethod
    def answers(
        self,
        examples: Sequence[Example],
        items: Sequence[Item],
        outputs: Sequence[Any],
        facts: Facts,
        frame: Frame,
    ) -> list[Answer]:
        """The outputs in words."""

    @abstractmethod
    def figures(
        self, examples: Sequence[Example], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, Figure]:
        """What the answers are worth."""

    def loss(self, items: Sequence[Item], outputs: Sequence[Any], facts: Facts) -> float | None:
        """The mean loss that outputs imply; None where only the network can tell."""
        return None

    def best(self, facts: Facts) -> str:
        """The figure by which the best of several models is chosen."""
        return self.metric

    def tuned(self, facts: Facts, examples: Sequence[Example], answers: Sequence[Answer]) -> Facts:
        """The facts with what only a trained model's answers can tell."""
        return facts

    def strata(self, examples: Sequence[Example]) -> list[Any]:
        """What a sample of the examples keeps the shares of."""
        return [None] * len(examples)

    def labels(self, example: Example) -> tuple[Any, ...]:
        """What is said of an example, or of its words, where that is a label."""
        return ()

    def constant_loss(self, examples: Sequence[Example], facts: Facts) -> float | None:
        """The loss of saying the same of every example; None where it is not known.

        Where one label has them all, no guess beats that.
        """
        counts = Counter(label for example in examples for label in self.labels(example))
        known = facts.labelling == "one" and len(counts) > 1
        return entropy(np.array(list(counts.values()))) if known else None

    def parts(
        self, examples: Sequence[Example], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, dict[str, Figure]]:
        """What the answers are worth by kinds of what is asked."""
        return {}

    def usual_options(self, config: ModelConfig) -> dict[str, Any]:
        """What its options are for a model of which only the head is known."""
        return {}

    def cannot(self, architecture: str) -> MismatchError:
        """The sentence for an architecture that cannot do it."""
        able = " or ".join(self.architectures)
        usual = f"{self.name} takes a model of the kind {able}, and this one is {architecture}."
        return MismatchError(self.why.format(architecture=architecture) or usual)


def judged_by(task: Task, facts: Facts, figures: Collection[str], *, balance: bool) -> str:
    """The figure, of those there are, by which the best model is chosen.

    Where rare labels count as much as common ones in learning, they do here.

    >>> from firth.tasks.classify import Classify
    >>> facts, figures = Facts(task="classify"), ("loss", "accuracy", "macro_f1")
    >>> [judged_by(Classify(), facts, figures, balance=balance) for balance in (False, True)]
    ['accuracy', 'macro_f1']
    """
    best = "macro_f1" if balance and "macro_f1" in figures else task.best(facts)
    return best if best in figures else next(iter(figures))


def on_empty(labelled: bool) -> OnEmpty:
    """An empty text is nothing to learn from, but may be asked about."""
    return "refuse" if labelled else "keep"


def without(columns: Columns, *roles: str) -> Columns:
    """The names of columns, but for some roles."""
    return {role: name for role, name in columns.items() if role not in roles}


def packed(rows: Sequence[Framed]) -> Packed:
    """Framed sequences, end to end."""
    stream = Packed.join([row.tokens for row in rows], np.zeros(len(rows), dtype=np.uint64))
    segments = np.concatenate([row.segments for row in rows])
    return Packed(stream.tokens, stream.starts, stream.keys, segments)


def reading(rows: Sequence[Framed], config: ModelConfig) -> Batch:
    """A batch of sequences that a network reads whole; a decoder sees what stands before."""
    inputs = packed(rows)
    causal = config.architecture == "decoder"
    return Batch(inputs, np.zeros_like(inputs.lengths) if causal else inputs.lengths)


def asked(name: str, positions: Longs, targets: Any) -> dict[str, Prediction]:
    """One prediction of a batch."""
    return {name: Prediction(positions, np.asarray(targets))}
