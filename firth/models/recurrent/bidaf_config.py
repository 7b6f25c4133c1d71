"""The config of a BiDAF network: `bidaf.py`."""

from __future__ import annotations

from dataclasses import dataclass

from firth.models.word_model_config import WordModelConfig


@dataclass(frozen=True, kw_only=True)
class BidafConfig(WordModelConfig):
    """The config of a BiDAF network; `hidden_size` follows from `lstm_size`."""

    architecture: str = "encoder"
    hidden_size: int = 0
    num_layers: int = 2  # of the modelling LSTM
    lstm_size: int = 100  # of each direction
    character_filters: int = 100  # features of a word's characters; 0: none
    character_size: int = 16  # of a character's embedding

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_size", 10 * self.lstm_size)
        super().__post_init__()

    @property
    def open_vocabulary(self) -> bool:
        """Whether words outside the vocabulary have characters, or may have a vector."""
        return self.character_filters > 0 or super().open_vocabulary
