"""Configs of the networks of one task: `bag_of_words.py`, `text_cnn.py` and `text_lstm.py`."""

from __future__ import annotations

from dataclasses import dataclass

from firth.models.config import ModelConfig
from firth.models.word_model_config import WordModelConfig
from firth.utils.errors import InputError


@dataclass(frozen=True, kw_only=True)
class BagOfWordsConfig(ModelConfig):
    """The config of a bag of words; `hidden_size` is the number of n-grams."""

    max_ngram: int = 2  # words of the longest n-grams

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_ngram <= 3:
            raise InputError(f"max_ngram must be 1, 2 or 3, not {self.max_ngram}.")


@dataclass(frozen=True, kw_only=True)
class TextCnnConfig(WordModelConfig):
    """The config of a convolutional network; `hidden_size` is the number of all filters."""

    filter_widths: tuple[int, ...] = (3, 4, 5)  # words that a filter reads

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "filter_widths", tuple(self.filter_widths))
        if not self.filter_widths or min(self.filter_widths) < 1:
            raise InputError("filter_widths must be positive numbers, such as 3,4,5.")
        if self.hidden_size % len(self.filter_widths):
            raise InputError(
                f"hidden_size must be divisible by the {len(self.filter_widths)} filter widths, "
                f"not {self.hidden_size}."
            )


@dataclass(frozen=True, kw_only=True)
class TextLstmConfig(WordModelConfig):
    """The config of an LSTM over words; `hidden_size` is that of both directions together."""

    bidirectional: bool = False
    character_filters: int = 0  # features of a word's characters; 0: none
    character_size: int = 30  # of a character's embedding

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bidirectional and self.hidden_size % 2:
            raise InputError(
                f"hidden_size must be even, half for each direction, not {self.hidden_size}."
            )

    @property
    def open_vocabulary(self) -> bool:
        """Whether words outside the vocabulary have characters, or may have a vector."""
        return self.character_filters > 0 or super().open_vocabulary
