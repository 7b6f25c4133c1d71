"""Tokens, shapes and parameters of every architecture; vectors as `hidden_states` returns them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from firth import Model, load
from firth.inspection import token_layers as module
from firth.inspection.input_text import model_input
from firth.inspection.token_layers import TokenLayers, token_layers
from firth.models.masks import Mask
from firth.models.transformer import Transformer, count_parameters
from firth.utils.figures import DataTable, LineChart

TEXT = "The dog ran\nhome."
MODELS = ("stories-encoder", "stories-decoder", "stories-seq2seq")


def read_layers(model: Model) -> TokenLayers:
    return token_layers(model, model_input(model, TEXT))


@pytest.mark.parametrize("name", MODELS)
def test_tokens_shapes_and_parameters(name: str) -> None:
    model = load(name)
    read = model_input(model, TEXT, "A cat." if name == "stories-seq2seq" else None)
    found = token_layers(model, read)
    stack = found.stacks[0]
    assert tuple(row.id for row in stack.tokens) == read.ids
    encoding = model.input_tokenizer().encoding(TEXT)
    spans = iter(encoding.offsets)
    for row in stack.tokens:
        assert row.characters == (next(spans) if row.id in encoding.ids else None)
        vector = model.network.tokens.weight[row.id].tolist()
        assert row.norm == pytest.approx(math.hypot(*vector), rel=1e-5)
        assert row.first_values == pytest.approx(vector[:4])
    if name == "stories-encoder":
        hidden = model.hidden_states(TEXT)  # (L + 1, T, W)
    else:  # `hidden_states` reads other special tokens
        make_mask = Mask.causal if name == "stories-decoder" else Mask
        layers: list[torch.Tensor] = []
        with torch.no_grad():
            model.network.encode(torch.tensor(read.ids), make_mask([len(read.ids)]), layers=layers)
        hidden = torch.stack(layers)
    assert stack.norms == pytest.approx(hidden.norm(dim=-1).mean(-1).tolist(), rel=1e-4)
    cosines = torch.cosine_similarity(hidden[1:], hidden[:-1], dim=-1).mean(-1)
    assert stack.cosines == pytest.approx(cosines.tolist(), rel=1e-4)
    assert found.num_parameters == model.num_parameters
    last = found.stacks[-1]
    shapes = {step.name.removeprefix(f"{last.name}: "): step.shape for step in found.steps}
    size = len(last.tokens)
    assert shapes["token ids"] == (size,)
    assert shapes["token embeddings"] == shapes["layer 1"] == (size, model.config.hidden_size)
    assert shapes["logits"] == (size, model.config.vocab_size)
    if name == "stories-seq2seq":
        assert [row.characters for row in last.tokens][:3] == [None, (0, 1), (1, 5)]
    assert json.loads(json.dumps(found.values()))["num_parameters"] == model.num_parameters


def test_figures_and_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    found = read_layers(load("stories-encoder"))
    tokens, shapes, norms, cosines = found.figures()
    assert isinstance(tokens, DataTable)
    assert [row[0] for row in tokens.rows] == ["<s>", "The", "…", ".", "</s>"]
    assert isinstance(shapes, DataTable)
    layer = found.steps[4]
    assert ("layers 2–5", str(layer.shape), f"{layer.parameters:,} each") in shapes.rows
    assert shapes.rows[-1][-1] == f"{found.num_parameters:,}"
    assert isinstance(norms, LineChart)
    assert isinstance(cosines, LineChart)
    assert [point.x for point in norms.lines["encoder"]] == [0, 1, 2, 3, 4, 5]
    assert [point.x for point in cosines.lines["encoder"]] == [1, 2, 3, 4, 5]


def test_int8_weights_shared_layers_and_networks_without_a_head() -> None:
    model = load("stories-decoder", weights="int8")
    assert read_layers(model).num_parameters == model.num_parameters
    model = load("stories-encoder")
    del model.network.heads["language"]
    found = read_layers(model)
    assert found.num_parameters == model.num_parameters
    assert "logits" not in [step.name for step in found.steps]
    shared = Transformer(replace(model.config, share_layers=True)).eval()
    found = read_layers(Model(shared, model.tokenizer))
    assert found.num_parameters == count_parameters(shared)
    assert [step.shared_with for step in found.steps if step.name == "layer 2"] == ["layer 1"]
