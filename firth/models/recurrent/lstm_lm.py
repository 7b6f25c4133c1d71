"""An LSTM language model: embeddings, LSTM layers with dropout between them, a softmax.

Recurrent language models are of Mikolov et al. 2010 (Recurrent neural network based language
model); LSTM layers with dropout on all but the recurrent connections of Zaremba et al. 2014
(Recurrent neural network regularization), whose medium model is the preset `lstm-lm`.

N  tokens of the batch     V  vocabulary size     E  embedding size     H  hidden size

The state of a sequence begins at zero. Zaremba et al. carry it from one window of 35 tokens to the
next; here documents of a batch are independent, so windows are longer instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from firth.models.heads import make_head
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.recurrent.packed_rnn import RecurrentLayers, RecurrentState
from firth.models.recurrent.recurrent_configs import LstmConfig


class RecurrentLanguageModel(LanguageNetwork):
    """Base class of language models whose context is a state of fixed size."""

    def forward(self, tokens: Tensor, mask: Mask, *, state: RecurrentState | None = None) -> Tensor:
        """Compute hidden states; `state` continues sequences whose earlier tokens it has seen."""
        raise NotImplementedError


class LstmLanguageModel(RecurrentLanguageModel):
    """An LSTM (or GRU) language model.

    >>> import torch
    >>> sizes = dict(vocab_size=10, max_positions=64, hidden_size=8, num_layers=2)
    >>> config = LstmConfig(architecture="decoder", tie_embeddings=False, **sizes)
    >>> network = LstmLanguageModel(config, ["language"])
    >>> hidden = network(torch.tensor([1, 2, 3, 4]), Mask.causal([3, 1]))
    >>> hidden.shape, network.logits(hidden).shape
    (torch.Size([4, 8]), torch.Size([4, 10]))

    With a state, a sequence can be read in parts:

    >>> state, _ = RecurrentState(), network.eval()
    >>> first = network(torch.tensor([1, 2]), Mask.causal([2]), state=state)
    >>> last = network(torch.tensor([3]), Mask.causal([1]), state=state)
    >>> whole = network(torch.tensor([1, 2, 3]), Mask.causal([3]))
    >>> torch.allclose(torch.cat([first, last]), whole, atol=1e-6)
    True
    """

    config: LstmConfig

    def __init__(self, config: LstmConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.token_embedding_size)
        self.decoder = RecurrentLayers(
            config.token_embedding_size,
            config.hidden_size,
            num_layers=config.num_layers,
            cell=config.cell,
            dropout=config.dropout,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    def forward(self, tokens: Tensor, mask: Mask, *, state: RecurrentState | None = None) -> Tensor:
        x = self.dropout(self.tokens(tokens))  # (N, E)
        return self.dropout(self.decoder(x, mask, state=state))  # (N, H)
