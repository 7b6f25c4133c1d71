"""The neural probabilistic language model of Bengio et al. 2003: the first with word vectors.

The embeddings x of the last n - 1 words predict the next one, with parameters C (embeddings),
H, d, U, W and b (section 2, equation 1):

    y = b + W x + U tanh(d + H x)        p(word | last n - 1) = softmax(y)

It is not recurrent: a word beyond n - 1 is forgotten, as in an n-gram model, but words with similar
embeddings share what was learnt about them.

N  tokens of the batch     V  vocabulary size     m  embedding size
n  order of the model      h  hidden units        x  (n - 1) m inputs
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from firth.models.heads import make_head
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.recurrent.recurrent_configs import BengioConfig


class BengioLanguageModel(LanguageNetwork):
    """The feed-forward language model of Bengio et al. 2003.

    >>> sizes = dict(vocab_size=10, embedding_size=4, order=3, hidden_units=5)
    >>> config = BengioConfig(architecture="decoder", max_positions=64, **sizes)
    >>> network = BengioLanguageModel(config, ["language"]).eval()
    >>> hidden = network(torch.tensor([7, 1, 2, 8, 1, 2]), Mask.causal([3, 3]))
    >>> network.logits(hidden).shape
    torch.Size([6, 10])

    With n = 3, the third word is predicted from the second and the first only:

    >>> torch.allclose(hidden[2], hidden[5]), torch.allclose(hidden[1], hidden[4])
    (True, False)

    The number of parameters is the paper's, |V| (1 + nm + h) + h (1 + (n - 1) m):

    >>> sum(p.numel() for p in network.parameters()) == 10 * (1 + 3 * 4 + 5) + 5 * (1 + 2 * 4)
    True
    """

    config: BengioConfig

    def __init__(self, config: BengioConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.hidden = nn.Linear(config.input_size, config.hidden_units)
        self.dropout = nn.Dropout(config.dropout)
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        x = self.dropout(self.context(tokens, mask))  # (N, (n - 1) m)
        units = torch.tanh(self.hidden(x)).to(x.dtype)  # (N, h)
        return torch.cat([units, x], dim=-1) if self.config.direct else units

    def context(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Concatenate the embeddings of each token and the n - 2 before it, the last one first.

        Before the beginning of a sequence there are zeros.
        """
        x = self.tokens(tokens)  # (N, m)
        parts = [x]
        for distance in range(1, self.config.order - 1):
            earlier = x.roll(distance, dims=0)
            outside = mask.positions < distance
            parts.append(earlier.masked_fill(outside[:, None], 0.0))
        return torch.cat(parts, dim=-1)  # (N, (n - 1) m)
