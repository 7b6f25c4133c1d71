"""The interface of a task: file format, head, metric, and the steps from examples to answers.

read      file              -> examples
metadata  examples          -> labels and options, saved with the model
encode    examples          -> items: token sequences with their targets
targets   items             -> what the network predicts at which positions of a batch
outputs   network, items    -> arrays for each item; an ensemble averages them
answer    output            -> a prediction as JSON values
metrics   answers           -> metrics against the gold values
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from firth.data.packing import PackedSequences
from firth.metrics.bootstrap import Metric
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.inputs import FramedSequence, InputTemplate
from firth.tasks.readers.columns import TaskFile
from firth.training.plateau import entropy
from firth.utils.errors import InputError, MismatchError, UsageError
from firth.utils.rng import Longs

Answer = dict[str, Any]
Example = Any  # one of the dataclasses of `examples.py`
ALL_ARCHITECTURES = ("encoder", "decoder", "encoder-decoder")
MIN_PROB = 1e-12  # lower bound of probabilities in logarithms


@dataclass(frozen=True, kw_only=True)
class TaskMetadata:
    """Labels and options of a task, saved with the model."""

    task: str
    labels: tuple[str, ...] = ()
    label_type: str = "one"  # of an example: "one" label, "many" labels or a "number"
    max_length: int = 0  # tokens of a sequence; 0: the task's default
    options: dict[str, Any] = field(default_factory=dict)  # task.NAME settings
    external: bool = False  # fine-tuned elsewhere, with the special tokens of the tokenizer alone

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


Items = Sequence[EncodedExample]


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
    options: ClassVar[Mapping[str, str]] = MappingProxyType({})  # setting -> its type
    label_unit: ClassVar[str] = ""  # what has a label: "examples", "words" or nothing
    numbers: ClassVar[bool] = False  # regression: labels are numbers
    generates: ClassVar[bool] = False  # outputs are texts, which cannot be averaged
    token_level: ClassVar[bool] = False  # outputs are per token
    unsupported_reason: ClassVar[str] = ""  # a sentence with {architecture}

    @abstractmethod
    def read(self, file: TaskFile) -> Iterator[Example]:
        """Yield the examples of a file."""

    def example(self, text: str) -> Example:
        """Make an example of a single text, for tasks whose input is one text."""
        raise UsageError(
            f"The input of {self.name} is more than one text: give rows of {self.columns}, in a "
            "file (`firth predict --data FILE`), or in Python as tuples or dicts."
        )

    def metadata(
        self, examples: Sequence[Example], length: int, options: Mapping[str, Any]
    ) -> TaskMetadata:
        """Collect labels and options from the training data."""
        return TaskMetadata(task=self.name, max_length=length, options=dict(options))

    def with_known_labels(
        self, metadata: TaskMetadata, examples: Sequence[Example]
    ) -> list[Example]:
        """Spell the labels of examples as those of the training data."""
        return list(examples)

    def check(self, metadata: TaskMetadata, examples: Sequence[Example], path: Path) -> None:  # noqa: B027
        """Raise InputError for examples that do not fit the metadata, such as unknown labels."""

    def data_notes(self, examples: Sequence[Example], path: Path) -> list[str]:
        """Return notes on how examples were read, where a file does not say it plainly."""
        return []

    @abstractmethod
    def encode(
        self, examples: Sequence[Example], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        """Tokenize examples."""

    def inputs(self, items: Items, config: ModelConfig) -> Batch:
        """Make one batch of the token sequences of items."""
        return input_batch([row for item in items for row in item.rows], config)

    @abstractmethod
    def targets(
        self, items: Items, batch: Batch, metadata: TaskMetadata
    ) -> dict[str, PredictionTargets]:
        """Return the prediction targets of the items in a batch, by the name of their loss."""

    def batch(self, items: Items, metadata: TaskMetadata, config: ModelConfig) -> Batch:
        """Make one batch of items, with prediction targets if they are known."""
        batch = self.inputs(items, config)
        if any(item.target is None for item in items):
            return batch
        return replace(batch, predictions=self.targets(items, batch, metadata))

    @abstractmethod
    def outputs(self, network: LanguageNetwork, items: Items, metadata: TaskMetadata) -> list[Any]:
        """Run the network and return its output for each item."""

    @abstractmethod
    def answer(
        self, example: Example, item: EncodedExample, output: Any, metadata: TaskMetadata
    ) -> Answer:
        """Convert the output of an example to a prediction."""

    @abstractmethod
    def metrics(
        self, examples: Sequence[Example], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        """Compute the metrics of predictions against the gold values."""

    def answers(
        self,
        examples: Sequence[Example],
        items: Items,
        outputs: Sequence[Any],
        metadata: TaskMetadata,
    ) -> list[Answer]:
        """Convert the outputs of all examples to predictions."""
        rows = zip(examples, items, outputs, strict=True)
        return [self.answer(*row, metadata) for row in rows]

    def loss(self, items: Items, outputs: Sequence[Any], metadata: TaskMetadata) -> float | None:
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
        return [getattr(example, "label", None) for example in examples]

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


def log_loss(probs: Any) -> float:
    """Compute the mean negative log-likelihood from the probabilities of the gold labels."""
    return float(-np.log(np.maximum(probs, MIN_PROB)).mean())


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
