"""The config of ELMo."""

from __future__ import annotations

from dataclasses import dataclass

from firth.models.config import ModelConfig
from firth.utils.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(ModelConfig):
    """The sizes of ELMo; `hidden_size` is that of both directions together."""

    cell_size: int = 4096  # of the LSTM cells, which are projected to half of hidden_size
    character_embedding_size: int = 16
    filters: tuple[int, ...] = (32, 32, 64, 128, 256, 512, 1024)  # with 1, 2, 3, … characters
    highway_layers: int = 2
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "filters", tuple(self.filters))
        object.__setattr__(self, "embedding_size", self.hidden_size // 2)
        if self.hidden_size % 2 or self.tie_embeddings or not self.filters:
            raise InputError(
                "ELMo needs an even hidden_size, filters, and tie_embeddings=false: its input "
                "embeddings are those of characters."
            )
        super().__post_init__()

    @property
    def open_vocabulary(self) -> bool:
        return True

    @property
    def is_bidirectional(self) -> bool:
        return True

    @property
    def predicts_backward(self) -> bool:
        return True
