"""The logit lens: probabilities, ranks and entropies by hand; blanks, targets and figures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from firth import Model, UsageError, load
from firth.inference import logit_lens
from firth.utils.errors import MismatchError
from firth.utils.figures import Heatmap, LineChart
from tests.inference.conftest import MakeModel

T5 = dict(num_decoder_layers=2, eos_token_id=3, decoder_start_token_id=0, pad_token_id=0)


def softmax(rows: np.ndarray) -> np.ndarray:
    exps = np.exp(rows - rows.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def test_layers_of_a_decoder_by_hand(decoder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer norm, output matrix and softmax in numpy, on each layer's hidden states."""
    monkeypatch.setattr(logit_lens, "MAX_LOGITS", 900)  # two positions of 400 tokens at a time
    text = "The sea was calm"
    lens = decoder.lens(text, top=3)
    hidden = decoder.hidden_states(text).double().numpy()  # the last has passed the norm
    norm, matrix = decoder.transformer.stack.final_norm, decoder.network.tokens.weight
    weight, bias, table = (x.detach().double().numpy() for x in (norm.weight, norm.bias, matrix))
    inner = hidden[:-1] - hidden[:-1].mean(-1, keepdims=True)
    normed = inner / np.sqrt((inner**2).mean(-1, keepdims=True) + 1e-5) * weight + bias
    probs = softmax(np.concatenate([normed, hidden[-1:]]) @ table.T)  # (L + 1, T, V)
    assert lens.candidates.shape == (3, len(lens.ids), 3)
    order = np.argsort(-probs, axis=-1)
    assert (lens.candidates == order[..., :3]).all()
    ids = np.array(lens.ids)
    assert lens.targets == (*lens.ids[1:], int(order[-1, -1, 0])), "the next tokens"
    assert lens.known == (True,) * (len(ids) - 1) + (False,)
    for i, target in enumerate(lens.targets):
        np.testing.assert_allclose(lens.target_probabilities[:, i], probs[:, i, target], rtol=1e-4)
        assert lens.target_ranks[:, i].tolist() == [
            int((row > row[target]).sum()) + 1 for row in probs[:, i]
        ]
    np.testing.assert_allclose(lens.entropies, -(probs * np.log(probs)).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(
        lens.probabilities[-1, :, 0], decoder.logits(text).softmax(-1).amax(-1), rtol=1e-5
    )


def test_blanks_of_an_encoder(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    text = "The ___ was calm."
    lens, right = model.lens(text), model.lens(text, target="sea")
    at = lens.ids.index(model.require_tokenizer().special_ids["mask"])
    assert [i for i, known in enumerate(lens.known) if not known] == [at]
    assert lens.targets[at] == lens.candidates[-1, at, 0], "the model's own prediction"
    assert right.names[right.targets[at]] == "sea"
    assert all(right.known)
    [found] = model.fill(text, targets=["sea"])[0]
    assert right.target_probabilities[-1, at] == pytest.approx(found.score, rel=1e-4)
    others = [i for i in range(len(lens.ids)) if i != at]
    assert [lens.targets[i] for i in others] == [lens.ids[i] for i in others]
    plain = model.lens("The sea was calm.")
    assert plain.targets == plain.ids
    assert [*plain.tokens] == model.tokens("The sea was calm.")


def test_the_decoder_of_an_encoder_decoder(make_model: MakeModel) -> None:
    model = make_model("t5-small", **T5)
    lens = model.lens("The sea was calm.", target="A boat!")
    ids = model.require_tokenizer().encode("A boat!")
    assert lens.ids == (0, *ids[:-1])
    assert list(lens.targets) == ids
    source = torch.tensor([model.text_generator().encode_prompt("The sea was calm.").ids])
    with torch.no_grad():
        logits = model.forward(source, decoder_input_ids=torch.tensor([lens.ids]))[0]
    np.testing.assert_allclose(lens.probabilities[-1, :, 0], logits.softmax(-1).amax(-1), rtol=1e-5)
    own = model.lens("The sea was calm.")
    assert (own.target_ranks[-1] == 1).all(), "by default the model's own greedy output"
    assert len(lens.source) == source.shape[1]


@pytest.mark.parametrize("name", ["stories-encoder", "stories-decoder", "stories-seq2seq"])
def test_figures_and_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logit_lens, "MAX_COLUMNS", 4)
    text = "The dog sat on the ___ in the warm sun." if name != "stories-decoder" else "The dog sat"
    lens = load(name).lens(text, target="grass", top=2)
    heatmap, lines = lens.figures()
    assert isinstance(heatmap, Heatmap)
    assert isinstance(lines, LineChart)
    assert len(heatmap.rows) == lens.num_layers + 1
    assert len(heatmap.columns) == min(4, len(lens.tokens))
    assert heatmap.rows[0].endswith(str(lens.num_layers)), "the last layer is at the top"
    column = lens.targets.index(next(id for id, name in lens.names.items() if name == "·grass"))
    shown = heatmap.columns.index(lens.tokens[column])
    best = lens.prediction(lens.num_layers, column)
    assert heatmap.texts[0][shown] == best.candidates[0][0]
    assert heatmap.values[0][shown] == best.candidates[0][1]
    assert f"rank {best.rank:,}" in heatmap.details[0][shown]
    values = json.loads(json.dumps(lens.values()))
    cell = values["layers"][-1]["predictions"][column]
    assert cell["rank"] == best.rank
    assert cell["candidates"][0]["token"] == heatmap.texts[0][shown]
    assert [len(line) for line in lines.lines.values()] == [lens.num_layers + 1] * len(lines.lines)


def test_some_positions_of_a_long_text(make_model: MakeModel, decoder: Model) -> None:
    """They are those of the whole text around the first blank, or the last ones."""
    encoder = make_model("bert-tiny")
    blank = "The sea was ___ and the boat was slow."
    for model, text in ((encoder, blank), (decoder, "The sea was calm")):
        whole, part = model.lens(text), model.lens(text, max_positions=3)
        rows = slice(part.first, part.first + 3)
        assert part.length == len(whole.tokens)
        assert part.tokens == whole.tokens[rows]
        assert part.known == whole.known[rows]
        assert not all(part.known)
        np.testing.assert_allclose(part.entropies, whole.entropies[:, rows], rtol=1e-4)
        assert (part.candidates == whole.candidates[:, rows]).all()
        assert f" of {part.length} " in part.figures()[0].caption  # type: ignore[union-attr]


def test_wrong_input(make_model: MakeModel, decoder: Model) -> None:
    model = make_model("bert-tiny")
    with pytest.raises(UsageError, match="top"):
        model.lens("The sea", top=0)
    with pytest.raises(UsageError, match="max_positions"):
        model.lens("The sea", max_positions=0)
    with pytest.raises(UsageError, match="blank"):
        model.lens("The sea", target="calm")
    with pytest.raises(UsageError, match="empty"):
        decoder.lens("")
    del model.network.heads["language"]
    with pytest.raises(MismatchError, match="language head"):
        model.lens("The sea")
