"""The config of word vectors."""

from __future__ import annotations

from dataclasses import dataclass

from firth.models.config import ModelConfig
from firth.models.subwords import SubwordConfig

MAX_WORDS = 1 << 20  # of a text


@dataclass(frozen=True, kw_only=True)
class StaticVectorsConfig(ModelConfig):
    """The sizes of word vectors and, with `buckets`, of their character n-grams."""

    architecture: str = "encoder"  # every token has its vector, none is predicted
    max_positions: int = MAX_WORDS
    num_layers: int = 0
    tie_embeddings: bool = False  # there is no language head
    pooling: str = "mean"
    dropout: float = 0.0
    unknown_token_id: int | None = None  # of unknown words, which are left out of the mean
    min_n: int = 3  # characters of the shortest n-grams
    max_n: int = 6
    buckets: int = 0  # that n-grams are hashed into; 0: unknown words have no vector

    @property
    def open_vocabulary(self) -> bool:
        """Whether unknown words have vectors."""
        return self.buckets > 0

    @property
    def subwords(self) -> SubwordConfig | None:
        """The n-grams of unknown words, if they have vectors."""
        if not self.buckets:
            return None
        return SubwordConfig(min_n=self.min_n, max_n=self.max_n, buckets=self.buckets)
