"""The configuration of the training loop."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from firth.training.optim import OptimizerConfig
from firth.training.schedule import SCHEDULES, StagedValue
from firth.utils.devices import PRECISIONS
from firth.utils.errors import UsageError, suggest

PARALLEL = ("auto", "replicate", "shard")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a training run, apart from its model and its data.

    >>> config = TrainingConfig(steps=100)
    >>> config.with_overrides({"learning_rate": "2e-3", "max_length": "64"}).optimizer.learning_rate
    0.002
    >>> config.with_overrides({"learning_rat": "1"})
    Traceback (most recent call last):
    firth.utils.errors.UsageError: Unknown setting 'learning_rat'; did you mean learning_rate?
    """

    steps: int = 0  # training budget in optimizer steps,
    tokens: int = 0  # or in tokens,
    minutes: float = 0.0  # or in minutes
    max_length: str = "128"  # longest sequence in tokens; in stages: 128:0.9,512
    batch_tokens: str = "8192"  # tokens per optimizer step; in stages: 8192:0.5,16384
    full_sentences: bool = False  # pre-training: sequences begin and end where sentences do
    micro_batch_tokens: int = 0  # tokens per forward pass; 0: the whole batch
    parallel: str = "auto"  # under torchrun: replicate or shard the weights
    dropout_slices: int = 0  # parts of a batch with their own dropout masks; 0: 8 under torchrun
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: str = "linear"  # linear, cosine, wsd, slanted or constant
    warmup: float = 0.1  # below 1: fraction of the run; otherwise number of steps
    min_lr_ratio: float = 0.0  # final learning rate, relative to the peak
    precision: str = "auto"  # fp32, bf16, fp16 (with loss scaling); auto: fastest
    compile: str = "auto"  # true, false: torch.compile; auto: long runs on a GPU
    cuda_graphs: str = "auto"  # true, false: CUDA graph capture; auto: on a GPU
    activation_checkpointing: bool = False  # recompute activations to save memory
    validate_every: float = 0.1  # fraction of the run between two validations
    validate_tokens: int = 32_768  # tokens of the validation set
    checkpoint_every: int = 0  # in steps; 0: at each validation and every 5 minutes
    keep_checkpoints: int = 2  # number of checkpoints to keep
    patience: int = 0  # validations without improvement before early stopping; 0: never
    log_every: int = 0  # steps between two lines of metrics.jsonl; 0: every second
    track: str = ""  # also log to: tensorboard
    seed: int = 0

    def __post_init__(self) -> None:
        if sum(bool(value) for value in (self.steps, self.tokens, self.minutes)) > 1:
            raise UsageError("Give only one training budget: steps, tokens or minutes.")
        if min(self.steps, self.tokens, self.minutes) < 0:
            raise UsageError("The training budget must be above 0.")
        if self.schedule not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise UsageError(f"Unknown schedule {self.schedule!r}; choose one of {known}.")
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"precision must be one of {', '.join(PRECISIONS)}, not {self.precision!r}."
            )
        for name in ("compile", "cuda_graphs"):
            if getattr(self, name) not in ("auto", "true", "false"):
                raise UsageError(
                    f"{name} must be auto, true or false, not {getattr(self, name)!r}."
                )
        if self.parallel not in PARALLEL:
            raise UsageError(
                f"parallel must be one of {', '.join(PARALLEL)}, not {self.parallel!r}."
            )
        if self.dropout_slices < 0:
            raise UsageError(f"dropout_slices must be 0 or more, not {self.dropout_slices}.")
        if self.track not in ("", "tensorboard"):
            raise UsageError(f"track must be tensorboard or empty, not {self.track!r}.")
        if not 0 < self.validate_every <= 1:
            raise UsageError(
                f"validate_every must be above 0 and at most 1, not {self.validate_every}."
            )
        if not 0 <= self.warmup < math.inf or (self.warmup >= 1 and self.warmup % 1):
            raise UsageError(
                "warmup must be a fraction of the run below 1, or a whole number of steps, not "
                f"{self.warmup}."
            )
        if not 0 <= self.min_lr_ratio <= 1:
            raise UsageError(f"min_lr_ratio must be from 0 to 1, not {self.min_lr_ratio}.")
        StagedValue.parse(self.max_length)
        StagedValue.parse(self.batch_tokens)

    @property
    def expected_tokens(self) -> int:
        """The tokens of the whole run; with a budget in minutes, 0."""
        return self.tokens or self.steps * StagedValue.parse(self.batch_tokens).largest

    def progress(self, step: int, tokens: int, seconds: float) -> float:
        """Return the fraction of the budget that is spent, from 0 to 1."""
        if self.steps:
            return min(1.0, step / self.steps)
        return min(1.0, tokens / self.tokens if self.tokens else seconds / (60 * self.minutes))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return asdict(self)

    def with_overrides(self, values: Mapping[str, Any], others: Iterable[str] = ()) -> Self:
        """Return a copy with some fields, or fields of the optimizer, replaced.

        `others`: settings of other groups, for the error about an unknown one.
        """
        kinds = {f.name: str(f.type) for f in fields(self) if f.name != "optimizer"}
        own = {name: value for name, value in values.items() if name in kinds}
        other = {name: value for name, value in values.items() if name in _OPTIMIZER}
        for name in values:
            if name not in own and name not in other:
                raise unknown_setting(name, [*kinds, *_OPTIMIZER], others)
        optimizer = replace(self.optimizer, **_typed(other, _OPTIMIZER))
        return replace(self, optimizer=optimizer, **_typed(own, kinds))


_OPTIMIZER = {field.name: str(field.type) for field in fields(OptimizerConfig)}


@dataclass(frozen=True, kw_only=True)
class FinetuneTrainingConfig(TrainingConfig):
    """Settings of fine-tuning: the budget in epochs, the batch size in examples."""

    epochs: float = 3.0  # passes over the training examples
    batch_size: int = 16  # examples per optimizer step
    max_length: str = "256"  # longest sequence in tokens
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=2e-5, beta2=0.999, weight_decay=0.01)
    )
    validate_every: float = 0.25
    patience: int = 2
    replay_every: int = 4  # task steps for each step on replayed text
    parallel: str = "replicate"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.full_sentences:
            raise UsageError("full_sentences is for pre-training: examples are never divided.")
        if self.parallel == "shard":
            raise UsageError("--parallel shard is for pre-training; fine-tuning replicates.")
        object.__setattr__(self, "parallel", "replicate")  # auto
        if not 0 < self.epochs < math.inf:
            raise UsageError(f"epochs must be above 0, not {self.epochs}.")
        if self.replay_every < 1:
            raise UsageError(f"replay_every must be at least 1, not {self.replay_every}.")

    @property
    def expected_tokens(self) -> int:
        """The tokens of the whole run, if examples are a quarter of the maximum length."""
        length = StagedValue.parse(self.max_length).largest
        return self.tokens or self.steps * self.batch_size * length // 4


def unknown_setting(name: str, known: list[str], others: Iterable[str] = ()) -> UsageError:
    """Return the error for an unknown setting, with its name in another group or a similar one.

    >>> str(unknown_setting("dropout", ["steps", "dropout_slices"], ["model.dropout"]))
    "Unknown setting 'dropout'; did you mean model.dropout?"
    """
    whole = [other for other in others if other.endswith(f".{name}")]
    hint = f"did you mean {' or '.join(whole)}?" if whole else suggest(name, known)
    return UsageError(f"Unknown setting {name!r}; {hint}")


def _typed(values: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    return {name: parse_value(name, value, kinds[name]) for name, value in values.items()}


def parse_value(name: str, value: Any, kind: str) -> Any:
    """Convert text to the type of a field, and numbers of text fields to text.

    >>> parse_value("steps", "1e3", "int"), parse_value("compile", "yes", "bool")
    (1000, True)
    >>> parse_value("max_length", 32, "str")
    '32'
    """
    if not isinstance(value, str):
        return str(value) if kind == "str" and type(value) in (int, float) else value
    try:
        if kind.startswith("bool"):
            return {"true": True, "yes": True, "false": False, "no": False}[value.lower()]
        if kind.startswith("int"):
            if float(value) != int(float(value)):
                raise ValueError
            return int(float(value))
        if kind.startswith("tuple"):
            return tuple(int(part) for part in value.split(",") if part)
        if kind.startswith("float"):
            if not math.isfinite(float(value)):
                raise ValueError
            return float(value)
        return value
    except (ValueError, KeyError, OverflowError) as error:
        expected = {
            "bool": "true or false",
            "int": "a whole number",
            "tuple": "a list of numbers such as 0,2,4",
        }
        what = expected.get(re.split(r"\W", kind)[0], "a number")
        raise UsageError(f"{name} must be {what}, not {value!r}.") from error


def group_overrides(
    overrides: Mapping[str, Any], names: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Group overrides by their prefix; those without one belong to "training".

    >>> group_overrides({"steps": 1, "head.layers": 2}, ("head",))
    {'head': {'layers': 2}, 'training': {'steps': 1}}
    """
    groups: dict[str, dict[str, Any]] = {name: {} for name in (*names, "training")}
    for name, value in overrides.items():
        group, dot, rest = name.partition(".")
        known = bool(dot) and group in groups
        groups[group if known else "training"][rest if known else name] = value
    return groups


def parse_any(text: Any) -> Any:
    """Convert text to a bool or a number if possible; return other values unchanged."""
    if not isinstance(text, str):
        return text
    for kind in ("bool", "int", "float"):
        try:
            return parse_value("", text, kind)
        except UsageError:
            continue
    return text
