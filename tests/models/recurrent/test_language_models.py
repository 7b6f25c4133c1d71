"""Bengio et al. 2003, LSTM language models and AWD-LSTM: equations, regularization, decoding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from firth.inference.generation.decode_state import DecodeState, RecurrentLmDecodeState
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.models.config import ModelConfig
from firth.models.initialization import initialise
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.networks import build_network
from firth.models.presets.earlier import EARLIER
from firth.models.recurrent.awd_lstm import AwdLstm, LockedDropout, WeightDropLayer
from firth.models.recurrent.lstm_lm import LstmLanguageModel
from firth.models.recurrent.packed_rnn import RecurrentState, StepOrder
from firth.models.recurrent.recurrent_configs import BengioConfig, LstmConfig
from firth.utils.errors import InputError

SHRUNK = {
    "bengio-2003": dict(vocab_size=50, embedding_size=4, hidden_units=5, hidden_size=0)
    | dict(output_embedding_size=0),
    "lstm-lm": dict(vocab_size=50, hidden_size=12, output_embedding_size=0),
    "awd-lstm": dict(vocab_size=50, hidden_size=8, lstm_size=12),
}
CONFIGS = {name: replace(EARLIER[name].config, **fields) for name, fields in SHRUNK.items()}
LENGTHS = [4, 7, 1, 5]


def build(config: ModelConfig) -> LanguageNetwork:
    return initialise(build_network(config, ["language"]), seed=1).eval()


def tokens() -> Tensor:
    return torch.randint(50, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_equals_one_at_a_time(name: str) -> None:
    network, stream = build(CONFIGS[name]), tokens()
    rows = stream.split(LENGTHS)
    alone = torch.cat([network(row, Mask.causal([len(row)])) for row in rows])
    torch.testing.assert_close(network(stream, Mask.causal(LENGTHS)), alone)


def test_padded_rows_drop_the_weights_of_packed_sequences() -> None:
    """A network that keeps its state runs on packed sequences, and others on padded rows."""
    network, stream = build(CONFIGS["awd-lstm"]).train(), tokens()
    found = []
    for state in (None, RecurrentState()):
        torch.manual_seed(3)  # the same dropout
        found.append(network(stream, Mask.causal(LENGTHS), state=state))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_has_a_gradient(name: str) -> None:
    network = build(CONFIGS[name]).train()
    network.logits(network(tokens(), Mask.causal(LENGTHS))).square().sum().backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.parametrize("name", ["lstm-lm", "awd-lstm"])
@pytest.mark.parametrize(
    "options",
    [
        dict(max_new_tokens=9),
        dict(max_new_tokens=9, method="sample", n=3, seed=4),
        dict(max_new_tokens=9, method="beam", beams=3, n=2, no_repeat_ngram=2),
    ],
)
def test_a_state_generates_what_whole_sequences_do(
    name: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, prompts = build(CONFIGS[name]), [[1, 2, 3], [4], [5, 6]]
    config = GenerationConfig(**options)  # type: ignore[arg-type]
    cached = generate(network, prompts, config, eos_token_id=7)
    used = []
    monkeypatch.setattr(
        "firth.inference.generation.decode_state.RecurrentLmDecodeState",
        lambda *arguments: used.append(1) or DecodeState(*arguments),
    )
    whole = generate(network, prompts, config, eos_token_id=7)
    assert used
    assert [[one.tokens for one in each] for each in cached] == [
        [one.tokens for one in each] for each in whole
    ]
    assert [one.logprob for each in cached for one in each] == pytest.approx(
        [one.logprob for each in whole for one in each], abs=1e-4
    )


def test_a_step_reads_one_token_per_sequence() -> None:
    network, seen = build(CONFIGS["lstm-lm"]), []
    network.tokens.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    state = RecurrentLmDecodeState(network, [[1, 2, 3], [4]], GenerationConfig())  # type: ignore[arg-type]
    state.advance(torch.tensor([5, 6]), torch.zeros(2))
    assert seen == [4, 2]


# ---- Bengio et al. 2003


def test_bengio_has_the_equation_of_the_paper() -> None:
    """y = b + W x + U tanh(d + H x), with x the last two embeddings, zero before the first."""
    sizes = dict(vocab_size=9, embedding_size=4, order=3, hidden_units=5)
    config = BengioConfig(architecture="decoder", max_positions=64, dropout=0.0, **sizes)
    network = build(config)
    nn.init.normal_(network.heads["language"].bias)
    values = {name: p.detach().double().numpy() for name, p in network.named_parameters()}
    c, output = values["tokens.weight"], values["heads.language.weight"]
    u, w = output[:, :5], output[:, 5:]
    found = network.logits(network(torch.tensor([3, 7, 1]), Mask.causal([3]))).detach()
    for i, inputs in enumerate([(3, None), (7, 3), (1, 7)]):
        x = np.concatenate([np.zeros(4) if id is None else c[id] for id in inputs])
        hidden = np.tanh(values["hidden.bias"] + values["hidden.weight"] @ x)
        y = values["heads.language.bias"] + w @ x + u @ hidden
        assert found[i].numpy() == pytest.approx(y, abs=1e-5)


def test_bengio_without_direct_connections() -> None:
    config = replace(CONFIGS["bengio-2003"], direct=False, hidden_size=0, output_embedding_size=0)
    assert config.hidden_size == config.hidden_units == 5
    assert build(config)(tokens(), Mask.causal(LENGTHS)).shape == (sum(LENGTHS), 5)
    with pytest.raises(InputError, match="hidden_units"):
        replace(config, hidden_size=7)


# ---- LSTM language models


def test_dropout_is_before_each_layer_and_after_the_last() -> None:
    config = replace(CONFIGS["lstm-lm"], dropout=0.5)
    network = build(config).train()
    applied = []
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda *_: applied.append(1))
    assert isinstance(network, LstmLanguageModel)
    network(tokens(), Mask.causal(LENGTHS))
    assert len(applied) == config.num_layers + 1


def test_the_sizes_of_tied_weights_must_fit() -> None:
    sizes = dict(vocab_size=50, max_positions=64, hidden_size=8, num_layers=1)
    config = LstmConfig(architecture="decoder", embedding_size=6, tie_embeddings=False, **sizes)
    assert build(config).logits(torch.zeros(2, 8)).shape == (2, 50)
    with pytest.raises(InputError, match="tie_embeddings"):
        replace(config, tie_embeddings=True, output_embedding_size=0)
    with pytest.raises(InputError, match="cell"):
        replace(config, cell="rnn")


# ---- AWD-LSTM


def test_the_published_number_of_parameters() -> None:
    """Merity et al. 2018, table 1: 24 million on the Penn Treebank; Zaremba et al. 2014: 20."""
    assert round(EARLIER["awd-lstm"].parameters / 1e6) == 24
    assert round(EARLIER["lstm-lm"].parameters / 1e6) == 20


def test_tied_weights_are_counted_once() -> None:
    config = CONFIGS["awd-lstm"]
    tied, untied = (
        sum(p.numel() for p in build(replace(config, tie_embeddings=tie)).parameters())
        for tie in (True, False)
    )
    assert untied - tied == config.vocab_size * config.hidden_size


def test_weight_drop_has_one_mask_for_all_steps() -> None:
    """In training the layer is torch's LSTM with weights of which half are zero."""
    layer = WeightDropLayer(4, 32, rate=0.5)
    x, order = torch.randn(9, 4), StepOrder(Mask([5, 4]))
    torch.manual_seed(5)
    found, _ = layer(x, order)
    torch.manual_seed(5)
    inputs, hidden, *biases = layer.weights()
    kept = hidden != 0
    assert kept.float().mean().item() == pytest.approx(0.5, abs=0.02)
    torch.testing.assert_close(hidden[kept], 2 * layer.rnn.weight_hh_l0[kept])
    assert torch.equal(inputs, layer.rnn.weight_ih_l0)
    reference = nn.LSTM(4, 32, batch_first=True)
    names = "weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0".split()
    reference.load_state_dict(dict(zip(names, [inputs, hidden, *biases], strict=True)))
    expected = torch.cat([reference(row[None])[0][0] for row in x.split([5, 4])])
    torch.testing.assert_close(found, expected)
    layer.eval()
    expected = torch.cat([layer.rnn(row)[0] for row in x.split([5, 4])])
    torch.testing.assert_close(layer.eval()(x, order)[0], expected)


def test_locked_dropout_has_one_mask_per_sequence() -> None:
    torch.manual_seed(0)
    dropped = LockedDropout(0.3)(torch.ones(9, 4000), Mask([5, 4]))
    assert torch.equal(dropped[0].expand(5, -1), dropped[:5])
    assert torch.equal(dropped[5].expand(4, -1), dropped[5:])
    assert not torch.equal(dropped[0], dropped[5])
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.03)


def test_embedding_dropout_drops_all_occurrences_of_a_word() -> None:
    network = build(replace(CONFIGS["awd-lstm"], embedding_dropout=0.5)).train()
    assert isinstance(network, AwdLstm)
    nn.init.ones_(network.tokens.weight)
    stream = torch.arange(50).repeat(2)
    dropped = network.embedding_dropout(network.tokens, stream)
    assert torch.equal(dropped[:50], dropped[50:])
    rows = dropped[:50, 0]
    assert set(rows.tolist()) == {0.0, 2.0}
    assert torch.equal(dropped[:50], rows[:, None].expand(-1, 8))


def test_the_penalties_by_hand() -> None:
    """Two sequences: activations 1, 3 and 2; the only change within a sequence is 2."""
    network = AwdLstm(replace(CONFIGS["awd-lstm"], dropout=0.0))
    hidden = torch.tensor([[1.0], [3.0], [2.0]]).expand(-1, 8)
    terms = network.penalties(hidden, Mask.causal([2, 1]))
    assert {name: (term.sum.item(), term.count) for name, term in terms.items()} == {
        "activations": (1 + 9 + 4, 3),
        "changes": (4, 3),
    }
    assert [term.weight for term in terms.values()] == [2.0, 1.0]
