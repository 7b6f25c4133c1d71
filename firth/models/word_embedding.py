"""Embeddings of whole words: trained rows, and fixed rows of pre-trained vectors.

The vocabulary is that of the training data. Words of other texts have no id in it, and a row only
if they have a pre-trained vector: such rows get no gradient in training, so they are a buffer, and
are found by a hash of the word. A hundred thousand words cost no optimizer state and no time.

V  vocabulary size     R  rows of the matrix     F  fixed rows     E  embedding size     N  tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from firth.models.contextual_features import ContextualFeatures
from firth.models.language_model import LanguageNetwork
from firth.models.layer_mix import LayerMix
from firth.models.masks import Mask
from firth.models.word_model_config import WordModelConfig
from firth.tokenizers.open_vocabulary import extended_ids
from firth.utils.device_transfer import to_device
from firth.utils.rng import Longs


def word_hashes(words: Sequence[str]) -> Longs:
    """Compute a 63-bit hash of each word.

    >>> word_hashes(["sun", "moon"]).tolist()
    [8176359471716472749, 6553979620038736601]
    """
    digests = (blake2b(word.encode(), digest_size=8).digest() for word in words)
    return np.array([int.from_bytes(d, "little") >> 1 for d in digests], dtype=np.int64)


class WordEmbedding(nn.Embedding):
    """Look up the vectors of words; those of the last rows are fixed.

    >>> config = WordModelConfig(
    ...     architecture="encoder", vocab_size=2, max_positions=8, hidden_size=2, num_layers=1,
    ...     num_word_rows=3, num_fixed_rows=1,
    ... )
    >>> words = WordEmbedding(config)
    >>> words.set_words(rows=[0, 1], row_words=["<unk>", "sun", "moon"])
    >>> words.set_vectors(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 5.0]]))
    >>> words.weight.shape, words.fixed.tolist()
    (torch.Size([2, 2]), [[0.0, 5.0]])
    >>> words.rows_of(["moon", "star"]).tolist()
    [2, 0]
    """

    fixed: Tensor
    rows: Tensor
    hashes: Tensor
    hashed_rows: Tensor

    def __init__(self, config: WordModelConfig) -> None:
        rows, size = config.num_word_rows or config.vocab_size, config.token_embedding_size
        super().__init__(rows - config.num_fixed_rows, size)
        self.config = config
        if config.num_fixed_rows:
            self.register_buffer("fixed", torch.zeros(config.num_fixed_rows, size))  # (F, E)
        if config.num_word_rows:
            zeros = torch.zeros(rows, dtype=torch.long)
            self.register_buffer("rows", torch.zeros(config.vocab_size, dtype=torch.long))  # (V,)
            self.register_buffer("hashes", zeros)  # (R,) ascending
            self.register_buffer("hashed_rows", zeros.clone())  # (R,) of those hashes

    def forward(self, input: Tensor) -> Tensor:
        rows = self._rows(input)  # (N,)
        if not self.config.num_fixed_rows:
            return super().forward(rows)
        first_fixed = self.num_embeddings
        trained = super().forward(rows.clamp(max=first_fixed - 1))  # (N, E)
        fixed = embedding((rows - first_fixed).clamp(min=0), self.fixed)  # (N, E)
        return torch.where((rows < first_fixed)[..., None], trained, fixed)

    def _rows(self, ids: Tensor) -> Tensor:
        """Return the rows of tokens, open words included."""  # (N,) -> (N,)
        if not self.config.num_word_rows:
            return ids.masked_fill(ids >= self.config.vocab_size, self.config.unknown_row)
        numbered, words = extended_ids(ids.cpu().numpy(), len(self.rows))
        rows = self.rows if not words else torch.cat([self.rows, self.rows_of(words)])
        return rows[to_device(numbered, rows.device)]

    def rows_of(self, words: Sequence[str]) -> Tensor:
        """Find the rows of words by their hashes; that of unknown words if there is none."""
        folded = [word.lower() for word in words] if self.config.folds_case else words
        wanted = to_device(word_hashes(folded), self.hashes.device)
        places = torch.searchsorted(self.hashes, wanted).clamp(max=len(self.hashes) - 1)
        unknown = torch.full_like(wanted, self.config.unknown_row)
        return torch.where(self.hashes[places] == wanted, self.hashed_rows[places], unknown)

    def set_words(self, rows: Sequence[int], row_words: Sequence[str]) -> None:
        """Store the row of each id, and the word of each row."""
        hashes, order = torch.from_numpy(word_hashes(row_words)).sort()
        self.rows.copy_(torch.tensor(rows))
        self.hashes.copy_(hashes)
        self.hashed_rows.copy_(order)

    @torch.no_grad()
    def set_vectors(self, vectors: Tensor) -> None:
        """Copy the vectors of all rows."""  # (R, E)
        self.weight.copy_(vectors[: self.num_embeddings])
        if self.config.num_fixed_rows:
            self.fixed.copy_(vectors[self.num_embeddings :])


class WordNetwork(LanguageNetwork):
    """Base class of networks whose tokens are whole words."""

    config: WordModelConfig
    tokens: WordEmbedding

    def __init__(self) -> None:
        super().__init__()
        self.features: ContextualFeatures | None = None  # `build_network` sets them

    @property
    def fixed_parameters(self) -> tuple[str, ...]:
        frozen = self.features is not None and self.features.frozen
        return ("features.network.",) if frozen else ()

    def word_vectors(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Compute the vectors of words: [x; features] (Peters et al. 2018, section 3.3)."""
        x = self.tokens(tokens)  # (N, E)
        if self.features is None:
            return x
        return torch.cat([x, self.features(tokens, mask).to(x.dtype)], dim=-1)  # (N, E + W)


def trained_layer_mix(network: LanguageNetwork) -> LayerMix | None:
    """Return the learned weighting of layers that a network's label head or input reads."""
    features = network.features if isinstance(network, WordNetwork) else None
    return network.layer_mix if features is None else features.mix
