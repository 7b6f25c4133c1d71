"""How a run learns: data, from which the loop is built."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from firth.errors import Misuse, meant
from firth.training.optim import OptimizerConfig
from firth.training.schedule import SCHEDULES, Stages


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about a run but its network and its text.

    >>> Settings(steps=100).changed({"rate": "2e-3", "length": "64:0.5,128"}).optimizer.rate
    0.002
    >>> Settings(steps=100).changed({"rte": "1"})
    Traceback (most recent call last):
    firth.errors.Misuse: There is nothing called 'rte' to set; did you mean rate?
    """

    steps: int = 0  # the budget: so many steps,
    tokens: int = 0  # or so many tokens,
    minutes: float = 0.0  # or so many minutes
    length: str = "128"  # the longest sequence; may change: 128:0.9,512
    batch: str = "8192"  # tokens of a step; may change
    micro: int = 0  # tokens computed at once; 0: all of a step
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: str = "linear"  # linear, cosine, wsd, slanted or constant
    warmup: float = 0.1  # the part of the run over which the rate rises
    floor: float = 0.0  # what is left of the rate at the end
    precision: str = "auto"  # bf16, fp32; auto: bf16 where the machine computes faster in it
    compile: str = "auto"  # true, false: let torch.compile fuse the blocks; auto: on long GPU runs
    record: str = "auto"  # true, false: tell a GPU only once what blocks compute; auto: do
    recompute: bool = False  # keep fewer activations and compute them again
    validate_every: float = 0.1  # the part of the run between two validations
    validate_tokens: int = 32_768  # text of a validation
    checkpoint_every: int = 0  # steps between two checkpoints; 0: each validation, and 5 minutes
    keep: int = 2  # checkpoints
    patience: int = 0  # validations neither better nor of lower loss that end a run; 0: never
    log_every: int = 0  # steps between two lines of metrics.jsonl; 0: about a second
    track: str = ""  # also write figures for: tensorboard
    seed: int = 0

    def __post_init__(self) -> None:
        if sum(bool(value) for value in (self.steps, self.tokens, self.minutes)) > 1:
            raise Misuse("Give one budget: steps, tokens or minutes.")
        if min(self.steps, self.tokens, self.minutes) < 0:
            raise Misuse("A budget must be more than nothing.")
        if self.schedule not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise Misuse(f"There is no schedule {self.schedule!r}; choose one of {known}.")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise Misuse(f"precision is auto, bf16 or fp32, not {self.precision!r}.")
        for name in ("compile", "record"):
            if getattr(self, name) not in ("auto", "true", "false"):
                raise Misuse(f"{name} is auto, true or false, not {getattr(self, name)!r}.")
        if self.track not in ("", "tensorboard"):
            raise Misuse(f"track is tensorboard or nothing, not {self.track!r}.")
        if not 0 < self.validate_every <= 1:
            raise Misuse(f"validate_every is a part of the run, not {self.validate_every}.")
        if not 0 <= self.warmup < 1 or not 0 <= self.floor <= 1:
            raise Misuse("warmup and floor are parts: numbers from 0 to 1.")
        Stages.parse(self.length)
        Stages.parse(self.batch)

    def progress(self, step: int, asked: int, seconds: float) -> float:
        """How far a run has come after so many steps, tokens asked for, and seconds."""
        if self.steps:
            return min(1.0, step / self.steps)
        return min(1.0, asked / self.tokens if self.tokens else seconds / (60 * self.minutes))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON knows them."""
        return asdict(self)

    def changed(self, values: Mapping[str, Any]) -> Self:
        """The same with some fields set, also those of the optimizer, from text or values."""
        kinds = {f.name: str(f.type) for f in fields(self) if f.name != "optimizer"}
        own = {name: value for name, value in values.items() if name in kinds}
        other = {name: value for name, value in values.items() if name in _OPTIMIZER}
        for name in values:
            if name not in own and name not in other:
                raise unknown(name, [*kinds, *_OPTIMIZER])
        optimizer = replace(self.optimizer, **_typed(other, _OPTIMIZER))
        return replace(self, optimizer=optimizer, **_typed(own, kinds))


_OPTIMIZER = {field.name: str(field.type) for field in fields(OptimizerConfig)}


@dataclass(frozen=True, kw_only=True)
class TuningSettings(Settings):
    """How a model is adapted: in epochs, and in steps of so many examples."""

    epochs: float = 3.0  # how often every example is seen
    batch: str = "16"  # examples of a step
    length: str = "256"  # tokens of the longest sequence
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(rate=2e-5, beta2=0.999, decay=0.01)
    )
    validate_every: float = 0.25
    patience: int = 2
    replay: int = 4  # with a text to replay: steps of the task for each step on that text

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.epochs < math.inf:
            raise Misuse(f"epochs must be more than 0, not {self.epochs}.")
        if self.replay < 1:
            raise Misuse(f"replay counts steps of the task, at least 1, not {self.replay}.")


def unknown(name: str, known: list[str]) -> Misuse:
    """The sentence for a name that nothing has."""
    return Misuse(f"There is nothing called {name!r} to set; {meant(name, known)}")


def _typed(values: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    return {name: typed(name, value, kinds[name]) for name, value in values.items()}


def typed(name: str, value: Any, kind: str) -> Any:
    """A value of the kind a field is declared to be, from text.

    >>> typed("steps", "1e3", "int"), typed("recompute", "yes", "bool")
    (1000, True)
    """
    if not isinstance(value, str):
        return value
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
        whats = {"bool": "true or false", "int": "a whole number", "tuple": "numbers: 0,2,4"}
        what = whats.get(re.split(r"\W", kind)[0], "a number")
        raise Misuse(f"{name} is {what}, not {value!r}.") from error


def grouped(changes: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Changes by what they are of; those that name no group are "settings".

    >>> grouped({"rate": 1, "head.layers": 2}, ("head",))
    {'head': {'layers': 2}, 'settings': {'rate': 1}}
    """
    groups: dict[str, dict[str, Any]] = {name: {} for name in (*names, "settings")}
    for name, value in changes.items():
        group, dot, rest = name.partition(".")
        known = bool(dot) and group in groups
        groups[group if known else "settings"][rest if known else name] = value
    return groups


def any_value(text: Any) -> Any:
    """A number, a truth, or text."""
    if not isinstance(text, str):
        return text
    for kind in ("bool", "int", "float"):
        try:
            return typed("", text, kind)
        except Misuse:
            continue
    return text
