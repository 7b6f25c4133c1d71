"""Word vectors as a network: the hidden state of a word is its vector, in every context.

word2vec (Mikolov et al. 2013), GloVe (Pennington et al. 2014) and fastText (Bojanowski et al. 2017)
are trained in different ways, but are the same function afterwards: a row of a matrix for each
word. A text is the mean of its words. fastText also has vectors of character n-grams, whose mean is
the vector of an unknown word.

N  tokens of the batch     V  vocabulary size       W  size of a vector
U  unknown words           B  buckets of n-grams    M  n-grams of the unknown words
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from firth.models.heads import make_head
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.static_vectors_config import StaticVectorsConfig
from firth.models.subwords import SubwordConfig, ngram_buckets
from firth.tokenizers.open_vocabulary import extended_ids
from firth.utils.device_transfer import to_device
from firth.utils.errors import MismatchError


class StaticVectors(LanguageNetwork):
    """A vector for each word of a vocabulary.

    >>> network = StaticVectors.from_matrix(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    >>> network(torch.tensor([1, 0]), Mask([2])).tolist()
    [[0.0, 2.0], [1.0, 0.0]]
    """

    config: StaticVectorsConfig

    def __init__(
        self,
        config: StaticVectorsConfig,
        heads: Iterable[str] = (),
        *,
        vectors: Tensor | None = None,
        ngrams: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        self.tokens = _embedding(config.vocab_size, size, vectors)
        self.ngrams = _embedding(config.buckets, size, ngrams) if config.buckets else None
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    @classmethod
    def from_matrix(
        cls,
        vectors: Tensor,
        *,
        unknown_token_id: int | None = None,
        ngrams: Tensor | None = None,
        subwords: SubwordConfig | None = None,
    ) -> StaticVectors:
        """Build a network from the vectors of words (V, W) and, of fastText, n-grams (B, W).

        `vectors` are those of whole words: of fastText, the mean of the word's own vector and its
        n-grams. The row of the unknown token is not used.
        """
        if (ngrams is None) != (subwords is None):
            raise MismatchError("Vectors of n-grams need the config of their buckets.")
        sizes = {} if subwords is None else vars(subwords)
        if ngrams is not None and ngrams.shape != (sizes["buckets"], vectors.shape[1]):
            raise MismatchError(
                f"The vectors of n-grams are {tuple(ngrams.shape)}, but there are "
                f"{sizes['buckets']:,} buckets of vectors with {vectors.shape[1]:,} numbers."
            )
        config = StaticVectorsConfig(
            vocab_size=vectors.shape[0],
            hidden_size=vectors.shape[1],
            unknown_token_id=unknown_token_id,
            **sizes,
        )
        return cls(config, vectors=vectors, ngrams=ngrams)

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        if self.ngrams is None:
            return self.tokens(tokens)  # (N,) -> (N, W)
        size = self.config.vocab_size
        ids, words = extended_ids(tokens.cpu().numpy(), size)
        if not words:
            return self.tokens(tokens)
        rows = to_device(ids, tokens.device)
        hidden = self.tokens(rows.clamp(max=size - 1))
        composed = self.compose(words)[(rows - size).clamp(min=0)]
        return torch.where((rows < size)[:, None], hidden, composed)  # (N, W)

    def encode(
        self, tokens: Tensor, mask: Mask, *, layers: list[Tensor] | None = None, **inputs: Any
    ) -> Tensor:
        """Return the vectors of tokens, which are the only layer."""
        hidden: Tensor = self(tokens, mask)
        if layers is not None:
            layers.append(hidden)
        return hidden

    def compose(self, words: Sequence[str]) -> Tensor:
        """Compute the mean vector of the n-grams of words, or zeros without any: (U, W)."""
        assert self.ngrams is not None
        assert self.config.subwords is not None
        buckets, sizes = ngram_buckets(words, self.config.subwords)
        weight = self.ngrams.weight
        ids = to_device(buckets, weight.device)  # (M,)
        starts = to_device(sizes.cumsum() - sizes, weight.device)  # (U,)
        return embedding_bag(ids, weight, starts, mode="mean")


def _embedding(rows: int, size: int, weight: Tensor | None) -> nn.Embedding:
    """Return embeddings with given weights, which are not copied, or with random ones."""
    if weight is None:
        return nn.Embedding(rows, size)
    return nn.Embedding.from_pretrained(weight, freeze=False)
