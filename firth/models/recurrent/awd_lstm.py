"""AWD-LSTM: an LSTM language model in which everything is regularized.

Merity, Keskar and Socher 2018 (Regularizing and optimizing LSTM language models). Against a plain
LSTM language model there are (with the section of the paper):

    weight drop           hidden-to-hidden weights are dropped, once for all steps (2)
    locked dropout        one mask per sequence, the same at all of its tokens (4.2)
    embedding dropout     all occurrences of a word in a batch are dropped at once (4.3)
    tied weights          the output matrix is the embedding matrix, so the last layer is as narrow
                          as the embeddings (4.4, 4.5)
    activation penalties  large activations, and large changes from one token to the next, cost
                          something in training (4.6)

The averaged SGD of section 3 is replaced by AdamW, as in ULMFiT (Howard and Ruder 2018).

N  tokens of the batch     S  sequences     V  vocabulary size
H  hidden size, of the embeddings and the last layer     L  size of the layers below it
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from firth.models.heads import make_head
from firth.models.language_model import LossTerm
from firth.models.masks import Mask
from firth.models.recurrent.lstm_lm import RecurrentLanguageModel
from firth.models.recurrent.packed_rnn import (
    LayerState,
    RecurrentLayer,
    RecurrentState,
    StepOrder,
    runs_padded,
)
from firth.models.recurrent.padded_rnn import run_padded
from firth.models.recurrent.recurrent_configs import AwdLstmConfig


class LockedDropout(nn.Module):
    """Dropout with one mask per sequence, the same at all of its tokens (Gal, Ghahramani 2016).

    >>> dropped = LockedDropout(0.5)(torch.ones(4, 100), Mask([3, 1]))
    >>> torch.equal(dropped[0], dropped[2]), torch.equal(dropped[2], dropped[3])
    (True, False)
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        if not self.training or not self.rate:
            return x
        kept = dropout(x.new_ones(len(mask), x.shape[1]), self.rate)  # (S, W)
        return x * kept[mask.sequence_ids]


class EmbeddingDropout(nn.Module):
    """Drop the embeddings of words: of all their occurrences in a batch, or of none."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, embeddings: nn.Embedding, tokens: Tensor) -> Tensor:
        x = embeddings(tokens)  # (N, H)
        if not self.training or not self.rate:
            return x
        kept = dropout(x.new_ones(embeddings.num_embeddings, 1), self.rate)  # (V, 1)
        return x * kept[tokens]


class WeightDropLayer(RecurrentLayer):
    """An LSTM layer whose hidden-to-hidden weights are dropped in training.

    One mask per forward pass, so it is the same at all steps, and the fused kernel can be used.
    """

    def __init__(self, input_size: int, hidden_size: int, rate: float) -> None:
        super().__init__(input_size, hidden_size)
        self.rate = rate

    def weights(self) -> list[Tensor]:
        """Return the weights of the kernel: input to hidden, hidden to hidden, and two biases."""
        inputs, hidden, *biases = self.rnn.parameters()
        parts = [inputs, dropout(hidden, self.rate, self.training), *biases]
        # cuDNN wants them side by side in memory
        flat = torch.cat([part.flatten() for part in parts])
        pieces = flat.split([part.numel() for part in parts])
        return [piece.view_as(part) for piece, part in zip(pieces, parts, strict=True)]

    def run(
        self, x: Tensor, batch_sizes: Tensor, state: LayerState | None
    ) -> tuple[Tensor, LayerState]:
        if not self.training or not self.rate:
            return super().run(x, batch_sizes, state)
        if state is None:
            zeros = x.new_zeros(1, int(batch_sizes[0]), self.rnn.hidden_size)
            state = (zeros, zeros)
        options = (True, 1, 0.0, True, False)  # biases, layers, dropout, training, bidirectional
        outputs, *after = torch.lstm(x, batch_sizes, state, self.weights(), *options)
        return outputs, tuple(after)


class WeightDropLayers(nn.Module):
    """The LSTM layers, with locked dropout before each."""

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__()
        inner = [config.lstm_size] * (config.num_layers - 1)
        sizes = [config.hidden_size, *inner, config.hidden_size]
        self.blocks = nn.ModuleList(
            WeightDropLayer(before, after, config.weight_dropout)
            for before, after in pairwise(sizes)
        )
        rates = [config.input_dropout] + [config.layer_dropout] * len(inner)
        self.dropouts = nn.ModuleList(map(LockedDropout, rates))

    def forward(self, x: Tensor, mask: Mask, state: RecurrentState | None) -> Tensor:
        order, padded = StepOrder(mask), runs_padded(x, state)
        for i, (layer, drop) in enumerate(zip(self.blocks, self.dropouts, strict=True)):
            x = drop(x, mask)
            if padded:
                assert isinstance(layer, WeightDropLayer)
                x = run_padded(layer.rnn, x, mask, [layer.weights()])
                continue
            before = state.layers.get(i) if state is not None else None
            x, after = layer(x, order, before)
            if state is not None:
                state.layers[i] = after
        return x  # (N, H)


class AwdLstm(RecurrentLanguageModel):
    """An AWD-LSTM language model.

    >>> sizes = dict(vocab_size=10_000, max_positions=4096, num_layers=3)
    >>> config = AwdLstmConfig(architecture="decoder", hidden_size=400, lstm_size=1150, **sizes)
    >>> with torch.device("meta"):
    ...     network = AwdLstm(config, ["language"])
    >>> sum(p.numel() for p in network.parameters())  # Merity et al. 2018, table 1: 24 million
    24211600

    The same words at the same place have the same vector, without dropout:

    >>> sizes = dict(vocab_size=10, max_positions=64, hidden_size=4, lstm_size=8, num_layers=2)
    >>> network = AwdLstm(AwdLstmConfig(architecture="decoder", **sizes), ["language"]).eval()
    >>> hidden = network(torch.tensor([1, 2, 1, 2]), Mask.causal([2, 2]))
    >>> torch.allclose(hidden[:2], hidden[2:]), network.logits(hidden).shape
    (True, torch.Size([4, 10]))
    """

    config: AwdLstmConfig

    def __init__(self, config: AwdLstmConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embedding_dropout = EmbeddingDropout(config.embedding_dropout)
        self.decoder = WeightDropLayers(config)
        self.output_dropout = LockedDropout(config.dropout)
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    def forward(self, tokens: Tensor, mask: Mask, *, state: RecurrentState | None = None) -> Tensor:
        x = self.embedding_dropout(self.tokens, tokens)  # (N, H)
        return self.output_dropout(self.decoder(x, mask, state), mask)

    @property
    def penalty_weights(self) -> dict[str, float]:
        config = self.config
        return {"activations": config.activation_penalty, "changes": config.temporal_penalty}

    def penalties(self, hidden: Tensor, mask: Mask) -> dict[str, LossTerm]:
        """Compute the penalties on the activations of the last layer and on their changes.

        The paper takes the changes before dropout. Its mask is the same at all tokens, so in
        expectation dropout divides their squares by 1 - rate, which is undone here.
        """
        hidden = hidden.float()
        first = mask.positions[1:] == 0  # the change from another sequence's last token
        changes = (hidden[1:] - hidden[:-1]).masked_fill(first[:, None], 0.0)
        sums = {
            "activations": hidden.square().mean(1).sum(),
            "changes": (1 - self.config.dropout) * changes.square().mean(1).sum(),
        }
        weights = self.penalty_weights
        return {name: LossTerm(sums[name], len(hidden), None, weights[name]) for name in sums}
