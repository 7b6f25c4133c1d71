"""The complete config of a fine-tuning run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from firth.tasks.task import TaskMetadata
from firth.training.config import FinetuneTrainingConfig


@dataclass(frozen=True, kw_only=True)
class FinetuneRunConfig:
    """Everything that determines a run: the same config and data give the same weights."""

    model: str
    task: str
    recipe: str
    strategy: str
    training: FinetuneTrainingConfig
    metadata: TaskMetadata
    head: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)  # role -> name in the files
    limit: int = 0
    balance: bool = False
    augment: str = ""
    scratch: bool = False
    decoder: str | None = None  # joined to the encoder `model`
    vectors: str | None = None  # of words, for a task-specific model
    network: dict[str, Any] = field(default_factory=dict)  # its own settings

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {**asdict(self), "metadata": self.metadata.to_dict()}
