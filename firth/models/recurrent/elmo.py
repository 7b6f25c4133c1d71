"""ELMo: a forward and a backward LSTM language model on words made of characters.

Peters et al. 2018, sections 3.1 and 3.2. The character CNN and the softmax are shared by the two
directions. A token has three vectors of the same size: its word vector twice, and those of the two
LSTM layers, [forward; backward]. A task reads the last, or a learned mix of all (`LayerMix`).

    N  tokens of the batch     U  distinct words     V  vocabulary size
    P  projection size, that of a word vector        W  hidden size, 2 P

The state of position t predicts token t + 1 from tokens 0 … t (forward), and token t - 1 from
tokens t … (backward). Differences to the paper: states are not clipped, and not carried over from
one batch to the next.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from firth.models.character_cnn import CharacterCNN, CharacterVectors
from firth.models.heads import make_head
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.recurrent.elmo_config import ElmoConfig
from firth.tokenizers.tokenizer import Tokenizer


class ProjectedLSTM(nn.Module):
    """An LSTM whose output, also that of its recurrence, is projected to a smaller size.

    Sequences are padded: torch's backward pass for packed ones takes 20 times as long on a CPU if
    there is a projection.

    >>> layer = ProjectedLSTM(4, 6)
    >>> layer(torch.zeros(5, 4), Mask([3, 2])).shape
    torch.Size([5, 4])
    """

    def __init__(self, size: int, cell_size: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(size, cell_size, proj_size=size, batch_first=True)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        outputs = []
        with warnings.catch_warnings():  # of oneDNN, which has no projections and is not used
            warnings.filterwarnings("ignore", "LSTM with projections is not supported")
            for group in mask.groups:
                rows, _ = self.rnn(group.pad(x))  # (G, L, P)
                outputs.append(group.unpad(rows).to(x.dtype))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)[mask.ungroup_order]


def reversed_order(mask: Mask) -> Tensor:
    """Return the indices that reverse every sequence of a packed batch.

    >>> reversed_order(Mask([3, 2])).tolist()
    [2, 1, 0, 4, 3]
    """  # (N,)
    first = mask.starts[mask.sequence_ids]
    return first + mask.lengths_tensor[mask.sequence_ids] - 1 - mask.positions


class Elmo(LanguageNetwork):
    """Two language models, one in each direction, and their hidden states.

    >>> sizes = dict(hidden_size=8, num_layers=2, cell_size=6, filters=(4, 4))
    >>> config = ElmoConfig(architecture="decoder", vocab_size=10, max_positions=32, **sizes)
    >>> network, layers = Elmo(config, ["language"]), []
    >>> network.encode(torch.tensor([1, 2, 3, 4]), Mask([3, 1]), layers=layers).shape
    torch.Size([4, 8])
    >>> len(layers), network.logits(layers[-1]).shape
    (3, torch.Size([4, 10]))
    """

    config: ElmoConfig
    has_layers = True

    def __init__(self, config: ElmoConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        cnn = CharacterCNN(
            config.character_embedding_size,
            list(enumerate(config.filters, 1)),
            highway_layers=config.highway_layers,
            output_size=config.embedding_size,
        )
        self.words = CharacterVectors(config.vocab_size, cnn)
        self.forward_layers, self.backward_layers = (self._lstm_layers() for _ in range(2))
        self.dropout = nn.Dropout(config.dropout)
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    def _lstm_layers(self) -> nn.ModuleList:
        size, cell = self.config.embedding_size, self.config.cell_size
        return nn.ModuleList(ProjectedLSTM(size, cell) for _ in range(self.config.num_layers))

    @property
    def tokens(self) -> nn.Embedding:  # type: ignore[override]
        """The embeddings of characters; there are none of words."""
        return self.words.cnn.embeddings

    @property
    def input_embeddings(self) -> nn.Module:
        return self.words

    def read_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Store the characters of the tokenizer's words."""
        self.words.characters.read_vocabulary(tokenizer)

    def forward(self, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        """Compute hidden states: token ids (N,) -> (N, W); inputs are those of `encode`."""
        return self.encode(tokens, mask, **inputs)

    def encode(
        self,
        tokens: Tensor,
        mask: Mask,
        *,
        layers: list[Tensor] | None = None,
        output_layer: int | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Compute the hidden states of a layer, by default the last; `layers` receives all."""
        words = self.words(tokens)  # (N, P)
        states = [torch.cat([words, words], dim=-1)]  # (N, W)
        forwards = self._run(self.forward_layers, words, mask)
        order = reversed_order(mask)
        backwards = [out[order] for out in self._run(self.backward_layers, words[order], mask)]
        states += [torch.cat(both, dim=-1) for both in zip(forwards, backwards, strict=True)]
        if layers is not None:
            layers.extend(states)
        return states[-1 if output_layer is None else output_layer]

    def _run(self, layers: nn.ModuleList, x: Tensor, mask: Mask) -> list[Tensor]:
        """Run the layers of one direction; those above the first add their input (residual)."""
        outputs: list[Tensor] = []
        for layer in layers:
            out = layer(self.dropout(x), mask)
            x = x + out if outputs else out
            outputs.append(x)
        return outputs  # (N, P) each

    def prediction_states(self, hidden: Tensor, *, backward: bool = False) -> Tensor:
        """Return the half of the hidden states that predicts the next or the previous token."""
        forward_half, backward_half = hidden.chunk(2, dim=-1)  # (P, W) -> (P, W / 2)
        return backward_half if backward else forward_half
