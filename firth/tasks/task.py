"""The interface of a task: file format, head, metric, and the steps from examples to answers.

read      file              -> examples
metadata  examples          -> labels and options, saved with the model
encode    examples          -> items: token sequences with their targets
batch     items             -> a batch for the network
outputs   network, items    -> arrays for each item; an ensemble averages them
answers   outputs           -> predictions as JSON values
metrics   answers           -> metrics against the gold values
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

from firth.data.packing import PackedSequences
from firth.data.readers import Bad
from firth.metrics.bootstrap import Metric
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.inputs import FramedSequence, InputTemplate
from firth.tasks.readers.columns import OnEmpty
from firth.training.plateau import entropy
from firth.utils.errors import InputError, MismatchError, UsageError
from firth.utils.rng import Longs

Answer = dict[str, Any]
Example = Any  # one of the dataclasses of `examples.py`
Columns = Mapping[str, Any]  # role of a column -> its name in the file
NO_COLUMNS: Columns = MappingProxyType({})
ALL_ARCHITECTURES = ("encoder", "decoder", "encoder-decoder")


@dataclass(frozen=True, kw_only=True)
class TaskMetadata:
    """Labels and options of a task, saved with the model."""

    task: str
    labels: tuple[str, ...] = ()
    label_type: str = "one"  # of an example: "one" label, "many" labels or a "number"
    max_length: int = 0  # tokens of a sequence; 0: the task's default
    options: dict[str, Any] = field(default_factory=dict)  # task.NAME settings

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {**asdict(self), "labels": list(self.labels)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TaskMetadata:
        """Build the metadata from JSON values."""
        known = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or set(values) - known or "task" not in values:
            raise InputError(f"The metadata of a task has the fields {', '.join(sorted(known))}.")
        return cls(**{**values, "labels": tuple(values.get("labels", ()))})


@dataclass(frozen=True)
class EncodedExample:
    """An example as token sequences."""

    rows: tuple[FramedSequence, ...]  # one sequence in most tasks
    target: Any = None
    cut: int = 0  # tokens removed by truncation
    detail: Any = None  # maps outputs back to the text: windows, word positions

    @property
    def size(self) -> int:
        """The number of tokens."""
        return sum(len(row.tokens) for row in self.rows)


class Task(ABC):
    """Base class of all tasks that a model can be fine-tuned on."""

    name: ClassVar[str]
    about: ClassVar[str]
    head: ClassVar[str]  # of the network that predicts
    metric: ClassVar[str]  # that selects the best checkpoint; "loss": lower is better
    architectures: ClassVar[tuple[str, ...]] = ALL_ARCHITECTURES
    needs_encoder_decoder: ClassVar[bool] = False  # an encoder may be joined to a decoder
    columns: ClassVar[str] = ""  # of its files, as shown in help
    roles: ClassVar[tuple[str, ...]] = ()  # of columns; --column ROLE=NAME renames them
    default_max_length: ClassVar[int] = 512  # tokens of a sequence
    options: ClassVar[Mapping[str, str]] = NO_COLUMNS  # setting -> its type
    label_unit: ClassVar[str] = ""  # what has a label: "examples", "words" or nothing
    numbers: ClassVar[bool] = False  # regression: labels are numbers
    generates: ClassVar[bool] = False  # outputs are texts, which cannot be averaged
    token_level: ClassVar[bool] = False  # outputs are per token
    unsupported_reason: ClassVar[str] = ""  # a sentence with {architecture}

    @abstractmethod
    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NO_COLUMNS,
    ) -> list[Example]:
        """Read the examples of a file; unless `labelled`, labels may be missing and texts empty."""

    def iter_examples(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NO_COLUMNS,
        bad: Bad | None = None,
    ) -> Iterator[Example]:
        """Yield the examples of a file for prediction, ignoring labels.

        Errors of single rows are passed to `bad`, and reading continues.
        """
        return iter(self.read(path, labelled=False, format=format, columns=columns))

    def example(self, text: str) -> Example:
        """Make an example of a single text, for tasks whose input is one text."""
        raise UsageError(
            f"The input of {self.name} is more than one text: give a file with --data."
        )

    def metadata(
        self, examples: Sequence[Example], length: int, options: Mapping[str, Any]
    ) -> TaskMetadata:
        """Collect labels and options from the training data."""
        return TaskMetadata(task=self.name, max_length=length, options=dict(options))

    def check(self, metadata: TaskMetadata, examples: Sequence[Example], path: Path) -> None:  # noqa: B027
        """Raise InputError for examples that do not fit the metadata, such as unknown labels."""

    @abstractmethod
    def encode(
        self, examples: Sequence[Example], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        """Tokenize examples."""

    @abstractmethod
    def batch(
        self, items: Sequence[EncodedExample], metadata: TaskMetadata, config: ModelConfig
    ) -> Batch:
        """Make one batch of items, with prediction targets if they are known."""

    @abstractmethod
    def outputs(
        self, network: Transformer, items: Sequence[EncodedExample], metadata: TaskMetadata
    ) -> list[Any]:
        """Run the network and return its output for each item."""

    @abstractmethod
    def answers(
        self,
        examples: Sequence[Example],
        items: Sequence[EncodedExample],
        outputs: Sequence[Any],
        metadata: TaskMetadata,
        template: InputTemplate,
    ) -> list[Answer]:
        """Convert outputs to predictions."""

    @abstractmethod
    def metrics(
        self, examples: Sequence[Example], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        """Compute the metrics of predictions against the gold values."""

    def loss(
        self, items: Sequence[EncodedExample], outputs: Sequence[Any], metadata: TaskMetadata
    ) -> float | None:
        """Compute the mean loss from outputs; None if only the network can."""
        return None

    def best(self, metadata: TaskMetadata) -> str:
        """The name of the metric that selects the best checkpoint."""
        return self.metric

    def calibrate(
        self, metadata: TaskMetadata, examples: Sequence[Example], answers: Sequence[Answer]
    ) -> TaskMetadata:
        """Add what is fitted to a trained model's predictions, such as a decision threshold."""
        return metadata

    def strata(self, examples: Sequence[Example]) -> list[Any]:
        """The groups whose proportions a stratified sample keeps."""
        return [None] * len(examples)

    def labels(self, example: Example) -> tuple[Any, ...]:
        """The labels of an example or of its words; empty if the task has none."""
        return ()

    def constant_loss(self, examples: Sequence[Example], metadata: TaskMetadata) -> float | None:
        """The loss of the best constant prediction; None if unknown or there is one label only."""
        counts = Counter(label for example in examples for label in self.labels(example))
        known = metadata.label_type == "one" and len(counts) > 1
        return entropy(np.array(list(counts.values()))) if known else None

    def parts(
        self, examples: Sequence[Example], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, dict[str, Metric]]:
        """Compute metrics of parts of the data, such as entity types."""
        return {}

    def default_options(self, config: ModelConfig) -> dict[str, Any]:
        """The options for a model that has the head but no saved metadata."""
        return {}

    def unsupported_architecture(self, architecture: str) -> MismatchError:
        """The error for an architecture that does not support the task."""
        able = " or ".join(self.architectures)
        usual = f"{self.name} needs a model of architecture {able}, and this one is {architecture}."
        return MismatchError(self.unsupported_reason.format(architecture=architecture) or usual)


def selection_metric(
    task: Task, metadata: TaskMetadata, metrics: Collection[str], *, balance: bool
) -> str:
    """The name of the available metric that selects the best checkpoint.

    With `balance`, labels have equal weight in training, so macro_f1 is preferred.

    >>> from firth.tasks.classify import ClassifyTask
    >>> metadata, metrics = TaskMetadata(task="classify"), ("loss", "accuracy", "macro_f1")
    >>> selection_metric(ClassifyTask(), metadata, metrics, balance=True)
    'macro_f1'
    """
    best = "macro_f1" if balance and "macro_f1" in metrics else task.best(metadata)
    return best if best in metrics else next(iter(metrics))


def on_empty(labelled: bool) -> OnEmpty:
    """Training refuses empty texts; prediction keeps them."""
    return "refuse" if labelled else "keep"


def without_roles(columns: Columns, *roles: str) -> Columns:
    """Remove some roles from the column names."""
    return {role: name for role, name in columns.items() if role not in roles}


def pack_sequences(rows: Sequence[FramedSequence]) -> PackedSequences:
    """Concatenate sequences for packed attention."""
    stream = PackedSequences.join(
        [row.tokens for row in rows], np.zeros(len(rows), dtype=np.uint64)
    )
    segments = np.concatenate([row.segments for row in rows])
    return PackedSequences(stream.tokens, stream.starts, stream.keys, segments)


def input_batch(rows: Sequence[FramedSequence], config: ModelConfig) -> Batch:
    """Make a batch of input sequences: bidirectional, or causal for a decoder."""
    inputs = pack_sequences(rows)
    causal = config.architecture == "decoder"
    return Batch(inputs, np.zeros_like(inputs.lengths) if causal else inputs.lengths)


def prediction_targets(name: str, positions: Longs, targets: Any) -> dict[str, PredictionTargets]:
    """Make the `predictions` of a batch with one kind of target."""
    return {name: PredictionTargets(positions, np.asarray(targets))}
