"""The config of networks of whole words."""

from __future__ import annotations

from dataclasses import dataclass

from firth.models.config import ModelConfig
from firth.utils.errors import InputError


@dataclass(frozen=True, kw_only=True)
class WordModelConfig(ModelConfig):
    """The config of a network of whole words, whose embeddings may be pre-trained vectors."""

    num_word_rows: int = 0  # rows of embeddings, found by hashes of words; 0: one for each id
    num_fixed_rows: int = 0  # the last of them, which are not trained
    unknown_row: int = 0  # of words that have no row
    folds_case: bool = False  # words are found in lower case: US and us have one row
    freeze_vectors: bool = False  # train no word that has a pre-trained vector

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.num_word_rows or self.vocab_size
        if self.num_fixed_rows >= rows:
            raise InputError(
                f"num_fixed_rows must be below {rows:,}, the number of embeddings, not "
                f"{self.num_fixed_rows:,}."
            )

    @property
    def has_language_head(self) -> bool:
        return False  # a network of one task

    @property
    def open_vocabulary(self) -> bool:
        """Whether words outside the vocabulary may have a vector."""
        return self.num_word_rows > 0
