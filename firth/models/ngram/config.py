"""The config of n-gram models."""

from __future__ import annotations

from dataclasses import dataclass

from firth.models.config import ModelConfig
from firth.utils.errors import InputError

MAX_ORDER = 10


@dataclass(frozen=True, kw_only=True)
class NgramConfig(ModelConfig):
    """The config of an n-gram model, which has no layers and no vectors."""

    order: int  # the n of its longest n-grams
    ngram_counts: tuple[int, ...] = ()  # number of n-grams of each order; before fitting: none

    architecture: str = "decoder"
    max_positions: int = 1 << 20  # a context is as long as its last n - 1 tokens
    hidden_size: int = 0
    num_layers: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "ngram_counts", tuple(self.ngram_counts))
        if self.order > MAX_ORDER:
            raise InputError(f"order is 1 to {MAX_ORDER}, not {self.order}.")
        if len(self.ngram_counts) not in (0, self.order):
            raise InputError(f"ngram_counts has {len(self.ngram_counts)} orders, not {self.order}.")
