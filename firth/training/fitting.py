"""Models that are fitted without the training loop: counted, or trained by kernels of their own.

An n-gram model is counted; word vectors are trained by loops over word pairs. Each is a row of the
table `FITTED` (`fitted_objectives.py`): a function from `FitInputs` to a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from firth.data.shards import Shards
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.tokenizers.counting import Progress
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.config import parse_value, unknown_setting
from firth.training.log import Metrics
from firth.utils.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class FitInputs:
    """What a fit function gets: text, config and options, and functions to report with."""

    shards: Shards  # the training split
    tokenizer: Tokenizer
    config: ModelConfig  # of the preset, with the vocabulary of the tokenizer
    options: Mapping[str, Any]  # those of the row, complete and of the right types
    seed: int
    scratch: Path  # an empty folder for temporary files, which is removed afterwards
    progress: Progress  # (what, done, total): shown, not stored
    # A line of metrics.jsonl, such as an epoch: step, loss, tokens so far, progress from 0 to 1, …
    log: Callable[[Metrics], None]
    note: Callable[[str], None]  # a message for the user


@dataclass(frozen=True, kw_only=True)
class FittedObjective:
    """One way to fit a model; the default of an option also defines its type."""

    about: str
    source: str  # the paper
    fit: Callable[[FitInputs], LanguageNetwork]
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    # Raise a UsageError for option values that the objective cannot have.
    check: Callable[[Mapping[str, Any]], None] = lambda options: None

    def parse_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options: the given ones in the types of the defaults, and the defaults.

        >>> row = FittedObjective(about="", source="", fit=print, options={"epochs": 5})
        >>> row.parse_options({"epochs": "3"}), row.parse_options({})
        ({'epochs': 3}, {'epochs': 5})
        >>> row.parse_options({"epoch": "3"})
        Traceback (most recent call last):
        firth.utils.errors.UsageError: Unknown setting 'epoch'; did you mean epochs?
        """
        options = dict(self.options)
        for name, value in given.items():
            if name not in options and not options:
                raise UsageError(f"Unknown setting {name!r}; this model has none.")
            if name not in options:
                raise unknown_setting(name, list(options))
            options[name] = parse_value(name, value, type(options[name]).__name__)
        self.check(options)
        return options


@dataclass(frozen=True, kw_only=True)
class FittedRunConfig:
    """The complete configuration of a fitted run: with the same data, it gives the same model."""

    preset: str
    objective: str  # a key of FITTED
    model: ModelConfig
    objective_options: dict[str, Any]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the config as JSON values."""
        return {**asdict(self), "model": self.model.to_dict()}
