"""LSTM and GRU layers on packed sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from firth.models.masks import Mask
from firth.models.recurrent.packed_rnn import (
    RecurrentLayer,
    RecurrentLayers,
    RecurrentState,
    StepOrder,
)
from firth.models.recurrent.padded_rnn import run_padded

LENGTHS = [3, 5, 1, 5, 2]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm_by_hand(x: np.ndarray, rnn: nn.RNNBase) -> np.ndarray:
    """The equations of Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000."""
    weights = {name: value.detach().double().numpy() for name, value in rnn.named_parameters()}
    hidden = cell = np.zeros(rnn.hidden_size)
    outputs = []
    for now in x:
        gates = weights["weight_ih_l0"] @ now + weights["bias_ih_l0"]
        gates = gates + weights["weight_hh_l0"] @ hidden + weights["bias_hh_l0"]
        i, f, g, o = np.split(gates, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padded_rows_give_outputs_and_gradients_of_packed_sequences(
    cell: str, bidirectional: bool
) -> None:
    layer = RecurrentLayer(4, 3, cell=cell, bidirectional=bidirectional)
    mask = Mask([3, 9, 1, 9, 2])  # two groups of rows of similar length
    found = []
    for run in (
        lambda x: run_padded(layer.rnn, x, mask),
        lambda x: layer(x, StepOrder(mask))[0],
    ):
        x = torch.randn(24, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
        outputs = run(x)
        outputs.square().sum().backward()
        found.append((outputs.detach(), x.grad))
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(padded, packed)


def stream(size: int = 4) -> Tensor:
    return torch.randn(sum(LENGTHS), size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("reverse", [False, True])
def test_an_lstm_layer_has_the_published_equations(reverse: bool) -> None:
    layer, x = RecurrentLayer(4, 3), stream()
    outputs, (hidden, _) = layer(x, StepOrder(Mask(LENGTHS), reverse=reverse))
    parts = zip(x.split(LENGTHS), outputs.split(LENGTHS), hidden[0], strict=True)
    for inputs, found, last in parts:
        numbers = inputs.double().numpy()
        expected = lstm_by_hand(numbers[::-1] if reverse else numbers, layer.rnn)
        assert found.detach().numpy() == pytest.approx(
            expected[::-1] if reverse else expected, abs=1e-5
        )
        assert last.detach().numpy() == pytest.approx(expected[-1], abs=1e-5)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_equals_one_at_a_time_in_torch(cell: str, bidirectional: bool) -> None:
    """The values and the gradients of sequences of a batch are those of each alone."""
    layers = RecurrentLayers(4, 3, num_layers=2, cell=cell, bidirectional=bidirectional)
    kind = nn.LSTM if cell == "lstm" else nn.GRU
    reference = kind(4, 3, num_layers=2, bidirectional=bidirectional, batch_first=True)
    reference.load_state_dict(
        {
            name.replace("_l0", f"_l{i}"): value
            for i, layer in enumerate(layers.blocks)
            for name, value in layer.rnn.state_dict().items()
        }
    )
    x, y = stream().requires_grad_(), stream().requires_grad_()
    found = layers(x, Mask(LENGTHS))
    expected = torch.cat([reference(row[None])[0][0] for row in y.split(LENGTHS)])
    torch.testing.assert_close(found, expected)
    found.pow(2).sum().backward()
    expected.pow(2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_a_state_continues_the_sequences() -> None:
    layers, x, state = RecurrentLayers(4, 3, num_layers=2), stream(), RecurrentState()
    whole = layers(x, Mask(LENGTHS)).split(LENGTHS)
    rows = x.split(LENGTHS)
    chosen = [i for i, length in enumerate(LENGTHS) if length > 1]
    firsts = [LENGTHS[i] - 1 for i in chosen]
    layers(torch.cat([rows[i][:-1] for i in chosen]), Mask(firsts), state=state)
    kept = torch.tensor([2, 0])
    state.select(kept)
    last = torch.stack([rows[chosen[i]][-1] for i in kept])
    found = layers(last, Mask([1, 1]), state=state)
    torch.testing.assert_close(found, torch.stack([whole[chosen[i]][-1] for i in kept]))


def test_dropout_is_between_the_layers_only() -> None:
    layers, x = RecurrentLayers(4, 64, num_layers=2, dropout=0.5), stream()
    outputs: list[Tensor] = []
    torch.manual_seed(3)
    first = layers(x, Mask(LENGTHS), layers=outputs)
    torch.manual_seed(3)
    assert torch.equal(layers(x, Mask(LENGTHS)), first)
    assert not torch.equal(layers(x, Mask(LENGTHS)), first)
    assert all((layer != 0).all() for layer in outputs)
    layers.eval()
    assert torch.equal(layers(x, Mask(LENGTHS)), layers(x, Mask(LENGTHS)))


def test_empty_sequences_and_batches() -> None:
    layers, x = RecurrentLayers(4, 3), stream()
    with_empty = layers(x[:5], Mask([3, 0, 2]))
    torch.testing.assert_close(with_empty, layers(x[:5], Mask([3, 2])))
    assert layers(x[:0], Mask([])).shape == (0, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_cudnn_gives_the_same(cell: str) -> None:
    layers, x = RecurrentLayers(4, 3, num_layers=2, cell=cell, bidirectional=True), stream()
    expected = layers(x, Mask(LENGTHS))
    found = layers.cuda()(x.cuda(), Mask(LENGTHS, device="cuda"))
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-3)
