"""What a fine-tuning run is to do, decided before anything is built."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from firth.tasks.task import Facts
from firth.training.settings import TuningSettings


@dataclass(frozen=True, kw_only=True)
class TuningJob:
    """Everything that decides a run; with the same data, the same job gives the same bits."""

    model: str
    task: str
    recipe: str
    strategy: str
    settings: TuningSettings
    facts: Facts
    head: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)  # what those of the files are called
    limit: int = 0
    balance: bool = False
    augment: str = ""
    scratch: bool = False
    decoder: str | None = None  # that the model was joined to

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON knows it."""
        return {**asdict(self), "facts": self.facts.to_dict()}
