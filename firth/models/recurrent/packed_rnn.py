"""LSTM and GRU layers on packed sequences, computed by torch's fused kernels.

    N  tokens of the batch     S  sequences     T  tokens of the longest sequence
    W  input size              H  hidden size   D  directions

A recurrent kernel takes the first tokens of all sequences, then the second ones, and so on, with
fewer sequences in later steps (`torch.nn.utils.rnn.PackedSequence`). `StepOrder` finds that order
from a `Mask`, so nothing is padded and no sequence of a batch can see another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import PackedSequence

from firth.models.masks import Mask, select_rows
from firth.models.recurrent.padded_rnn import run_padded
from firth.utils.device_transfer import to_device
from firth.utils.rng import Longs

LayerState = tuple[Tensor, ...]  # (D, S, H) each: hidden and cell (LSTM), or hidden (GRU)
CELLS: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class StepOrder:
    """The order in which a recurrent kernel reads the tokens of a packed batch.

    >>> order = StepOrder(Mask([2, 3]))  # the longer sequence first: its tokens are 2, 3 and 4
    >>> order.tokens.tolist(), order.batch_sizes.tolist()
    ([2, 0, 3, 1, 4], [2, 2, 1])
    >>> StepOrder(Mask([2, 3]), reverse=True).tokens.tolist()
    [4, 1, 3, 0, 2]
    """

    def __init__(self, mask: Mask, *, reverse: bool = False) -> None:
        """`reverse`: read every sequence from its last token to its first."""
        self.device, lengths = mask.device, mask.lengths
        self._sequences = np.argsort(-lengths, kind="stable")  # (S,) longest first
        ranks = np.argsort(self._sequences)
        starts = np.cumsum(lengths) - lengths
        steps = np.arange(lengths.sum()) - np.repeat(starts, lengths)  # (N,)
        if reverse:
            steps = np.repeat(lengths, lengths) - 1 - steps
        self._tokens = np.lexsort((np.repeat(ranks, lengths), steps))
        self.batch_sizes = torch.from_numpy(np.bincount(steps))  # (T,) on the CPU, as torch asks

    @cached_property
    def tokens(self) -> Tensor:
        """The index in the batch of each token that the kernel reads."""  # (N,)
        return to_device(self._tokens, self.device)

    @cached_property
    def inverse(self) -> Tensor:
        """The position in the kernel's order of each token of the batch."""  # (N,)
        return to_device(np.argsort(self._tokens), self.device)

    def sort_state(self, state: LayerState) -> LayerState:
        """Bring the states of the sequences, none of them empty, to the kernel's order."""
        return self._select(state, self._sequences)

    def restore_state(self, state: LayerState) -> LayerState:
        """Undo `sort_state`; the state of an empty sequence is zero."""
        if missing := len(self._sequences) - state[0].shape[1]:
            state = tuple(pad(tensor, (0, 0, 0, missing)) for tensor in state)
        return self._select(state, np.argsort(self._sequences))

    def _select(self, state: LayerState, sequences: Longs) -> LayerState:
        if (sequences[1:] > sequences[:-1]).all():  # they are in this order already
            return state
        indices = to_device(sequences, self.device)
        return tuple(tensor.index_select(1, indices) for tensor in state)


class RecurrentState:
    """The state of every layer after the tokens so far, for decoding step by step.

    A network that gets it begins with the states it holds and leaves the new ones in it.
    """

    def __init__(self) -> None:
        self.layers: dict[int, LayerState] = {}

    def select(self, sequences: Tensor) -> None:
        """Continue with these sequences, in this order."""  # (S,)
        for i, state in self.layers.items():
            self.layers[i] = tuple(tensor.index_select(1, sequences) for tensor in state)

    def join(self, other: RecurrentState) -> None:
        """Append the sequences of another state."""
        for i, added in other.layers.items():
            pairs = zip(self.layers[i], added, strict=True)
            self.layers[i] = tuple(torch.cat(pair, dim=1) for pair in pairs)


class RecurrentLayer(nn.Module):
    """One LSTM or GRU layer, in one direction or in both.

    >>> layer = RecurrentLayer(4, 3, bidirectional=True)
    >>> mask = Mask([3, 2])
    >>> outputs, (hidden, cell) = layer(torch.zeros(5, 4), StepOrder(mask))
    >>> outputs.shape, hidden.shape
    (torch.Size([5, 6]), torch.Size([2, 2, 3]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        cell: str = "lstm",
        bidirectional: bool = False,
        projection_size: int = 0,
    ) -> None:
        """`projection_size`: an LSTM's output is projected to this size (ELMo); 0: it is not."""
        super().__init__()
        options = {"proj_size": projection_size} if projection_size else {}
        self.rnn = CELLS[cell](input_size, hidden_size, bidirectional=bidirectional, **options)
        self.output_size = (projection_size or hidden_size) * (1 + bidirectional)

    def forward(
        self, x: Tensor, order: StepOrder, state: LayerState | None = None
    ) -> tuple[Tensor, LayerState]:
        """Return the outputs of all tokens and the state after each sequence's last."""
        if not len(x):
            return x.new_zeros(0, self.output_size), state or ()
        if state is not None:
            state = order.sort_state(state)
        outputs, state = self.run(select_rows(x, order.tokens), order.batch_sizes, state)
        outputs = select_rows(outputs, order.inverse).to(x.dtype)  # autocast returns half precision
        return outputs, order.restore_state(state)  # (N, D * H)

    def run(
        self, x: Tensor, batch_sizes: Tensor, state: LayerState | None
    ) -> tuple[Tensor, LayerState]:
        """Run the kernel on tokens in its order."""  # (N, W) -> (N, D * H)
        start = state[0] if state is not None and isinstance(self.rnn, nn.GRU) else state
        outputs, last = self.rnn(PackedSequence(x, batch_sizes), start)
        return outputs.data, (last,) if isinstance(last, Tensor) else last


def runs_padded(x: Tensor, state: RecurrentState | None) -> bool:
    """Tell whether layers are computed on padded rows, which is faster on a CPU."""
    return state is None and x.device.type == "cpu" and len(x) > 0


class RecurrentLayers(nn.Module):
    """Several layers, with dropout between them as in `torch.nn.LSTM` (Zaremba et al. 2014).

    torch's own dropout in cuDNN keeps a generator that `torch.manual_seed` does not reset, so a
    resumed run would draw other masks; here each layer is a module and dropout is between them.
    They are named as a Transformer's blocks, so strategies and layer-wise learning rates find them.

    >>> layers = RecurrentLayers(4, 3, num_layers=2, cell="gru", bidirectional=True)
    >>> layers(torch.zeros(5, 4), Mask([3, 2])).shape
    torch.Size([5, 6])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_layers: int = 1,
        cell: str = "lstm",
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.output_size = hidden_size * (1 + bidirectional)
        sizes = [input_size] + [self.output_size] * (num_layers - 1)
        self.blocks = nn.ModuleList(
            RecurrentLayer(size, hidden_size, cell=cell, bidirectional=bidirectional)
            for size in sizes
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        *,
        state: RecurrentState | None = None,
        layers: list[Tensor] | None = None,
    ) -> Tensor:
        """Compute the outputs of the last layer; append those of every layer to `layers`."""
        order, padded = StepOrder(mask), runs_padded(x, state)
        for i, layer in enumerate(self.blocks):
            x = self.dropout(x) if i else x
            assert isinstance(layer, RecurrentLayer)
            if padded:
                x = run_padded(layer.rnn, x, mask)
            else:
                before = state.layers.get(i) if state is not None else None
                x, after = layer(x, order, before)
                if state is not None:
                    state.layers[i] = after
            if layers is not None:
                layers.append(x)
        return x  # (N, D * H)
