"""A bag of words: TF-IDF of n-grams of words, for a linear classifier.

A text is the set of its n-grams. The weight of an n-gram is 1 + log of its count, times its inverse
document frequency (Spärck Jones 1972), and the weights of a text have the L2 norm 1: as
scikit-learn's TfidfVectorizer with sublinear_tf. Word order is lost beyond the n-grams.

N  tokens of the batch     n  sizes of n-grams     F  n-grams of the training data (hidden size)
S  sequences               P  distinct n-grams of all sequences                   K  labels
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from firth.models.heads import make_head
from firth.models.label_heads import LabelHead
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.pooling import sequence_ids_of
from firth.models.task_specific.text_configs import BagOfWordsConfig
from firth.utils.rng import Longs


class BagOfWords(LanguageNetwork):
    """TF-IDF of n-grams; the hidden states of a token are the n-grams that end there.

    >>> config = BagOfWordsConfig(
    ...     architecture="encoder", vocab_size=9, max_positions=32, hidden_size=3, num_layers=1
    ... )
    >>> network = BagOfWords(config)
    >>> network.count([np.array([5, 6]), np.array([6])])
    >>> hidden = network(torch.tensor([5, 6, 6, 8]), Mask([2, 2]))
    >>> hidden.tolist()  # words 5 and 6, and 5 followed by 6; others are unknown (-1)
    [[0, -1], [1, 2], [1, -1], [-1, -1]]
    >>> network.pool(hidden, torch.tensor([0, 2, 4])).detach().numpy().round(2)
    array([[0.63, 0.45, 0.63],
           [0.  , 1.  , 0.  ]], dtype=float32)
    """

    config: BagOfWordsConfig
    ngrams: Tensor

    def __init__(self, config: BagOfWordsConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.hidden_size, 1)  # the IDF of each n-gram
        codes = torch.zeros(config.hidden_size, dtype=torch.long)
        self.register_buffer("ngrams", codes)  # (F,) codes, ascending
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    @torch.no_grad()
    def count(self, texts: Sequence[Longs]) -> None:
        """Set the n-grams and their inverse document frequencies, from the ids of texts."""
        codes, frequencies = document_frequencies(texts, self.config)
        idf = np.log((1 + len(texts)) / (1 + frequencies)) + 1
        self.ngrams.copy_(torch.from_numpy(codes))
        self.tokens.weight.copy_(torch.from_numpy(idf)[:, None])

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        codes = ngram_codes(tokens, mask.positions, self.config)  # (N, n)
        places = torch.searchsorted(self.ngrams, codes).clamp(max=len(self.ngrams) - 1)
        return places.masked_fill(self.ngrams[places] != codes, -1)  # (N, n)

    def weights(self, hidden: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sequence, the n-gram and the weight of each distinct n-gram of a sequence."""
        owners = sequence_ids_of(starts)[:, None].expand_as(hidden)  # (N, n)
        known, size = hidden >= 0, self.config.hidden_size
        pairs, counts = torch.unique(owners[known] * size + hidden[known], return_counts=True)
        owners, ngrams = pairs // size, pairs % size  # (P,)
        values = (1 + counts.to(self.dtype).log()) * self.tokens(ngrams).squeeze(-1)
        squares = values.new_zeros(len(starts) - 1).index_add(0, owners, values.square())
        return owners, ngrams, values / squares.sqrt()[owners]

    def pool(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """Compute the vector of each sequence: mostly zeros."""  # (S, F)
        owners, ngrams, values = self.weights(hidden, starts)
        rows = values.new_zeros(len(starts) - 1, self.config.hidden_size)
        return rows.index_put((owners, ngrams), values)

    def label_logits(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """Compute the logits of each sequence from its n-grams alone."""  # (S, K)
        head = self.heads[self.config.label_head]
        assert isinstance(head, LabelHead)
        owners, ngrams, values = self.weights(hidden, starts)
        parts = values[:, None] * head.output.weight.mT[ngrams]  # (P, K)
        sums = parts.new_zeros(len(starts) - 1, parts.shape[1]).index_add(0, owners, parts)
        return sums if head.output.bias is None else sums + head.output.bias


def ngram_codes(tokens: Tensor, positions: Tensor, config: BagOfWordsConfig) -> Tensor:
    """Compute a number for each n-gram that ends at a token; 0 if the text begins after it.

    >>> config = BagOfWordsConfig(
    ...     architecture="encoder", vocab_size=9, max_positions=32, hidden_size=3, num_layers=1
    ... )
    >>> ngram_codes(torch.tensor([5, 6, 6]), torch.tensor([0, 1, 0]), config).tolist()
    [[6, 0], [7, 67], [7, 0]]
    """  # (N,) -> (N, n)
    base, ids = config.vocab_size + 1, tokens.clamp(max=config.vocab_size - 1) + 1
    code, found = ids, [ids]
    for before in range(1, config.max_ngram):
        code = code + ids.roll(before) * base**before
        found.append(code.masked_fill(positions < before, 0))
    return torch.stack(found, dim=1)


def document_frequencies(texts: Sequence[Longs], config: BagOfWordsConfig) -> tuple[Longs, Longs]:
    """Count in how many texts each n-gram occurs; return the codes, ascending, and the counts."""
    mask = Mask([len(text) for text in texts])
    stream = torch.from_numpy(np.concatenate(texts)).long()
    codes = ngram_codes(stream, mask.positions, config)  # (N, n)
    owners = mask.sequence_ids[:, None].expand_as(codes)
    pairs = torch.stack([codes.flatten(), owners.flatten()])[:, codes.flatten() > 0]
    distinct, counts = torch.unique(torch.unique(pairs, dim=1)[0], return_counts=True)
    return distinct.numpy(), counts.numpy()
