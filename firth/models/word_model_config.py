"""The config of networks of whole words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firth.models.config import ModelConfig
from firth.utils.errors import InputError


@dataclass(frozen=True, kw_only=True)
class WordModelConfig(ModelConfig):
    """The config of a network of whole words, whose embeddings may be pre-trained vectors."""

    num_word_rows: int = 0  # rows of embeddings, found by hashes of words; 0: one for each id
    num_fixed_rows: int = 0  # the last of them, which are not trained
    unknown_row: int = 0  # of words that have no row
    folds_case: bool = False  # words are found in lower case: US and us have one row
    freeze_vectors: bool = False  # train no word that has a pre-trained vector, and no `features`

    # --- a network whose hidden states are input vectors of words (`contextual_features.py`)
    features: Mapping[str, Any] | None = None  # its kind and its config, as in `config.json`
    feature_layer: int | None = None  # that is read: 0 is the embeddings; None: a mix of all

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.num_word_rows or self.vocab_size
        if self.num_fixed_rows >= rows:
            raise InputError(
                f"num_fixed_rows must be below {rows:,}, the number of embeddings, not "
                f"{self.num_fixed_rows:,}."
            )
        if self.feature_layer is not None and self.features is None:
            raise InputError("feature_layer is for --vectors MODEL, a model with hidden states.")

    @property
    def has_language_head(self) -> bool:
        return False  # a network of one task

    @property
    def open_vocabulary(self) -> bool:
        """Whether words outside the vocabulary may have a vector."""
        return self.num_word_rows > 0

    @property
    def feature_size(self) -> int:
        """The size of the vectors of `features`; 0: there are none."""
        if self.features is None:
            return 0
        config = self.features["model"]
        return int((config.get("encoder") or config)["hidden_size"])

    @property
    def word_vector_size(self) -> int:
        """The size of a word's input vector: its embedding and its contextual features."""
        return self.token_embedding_size + self.feature_size
