"""`Model.attention`: shapes, chosen layers and heads, targets, and wrong arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firth import Model, load
from firth.inference.attention_maps import attention_maps
from firth.models.transformer import Transformer
from firth.utils.errors import FirthError, MismatchError, UsageError
from tests.inference.conftest import MakeModel
from tests.models.test_language_model import Bigram

TEXT = "The sea was calm."


@pytest.mark.parametrize(("name", "tokenizer"), [("bert-tiny", "wordpiece"), ("gpt2", "bpe")])
def test_shape_and_rows(make_model: MakeModel, name: str, tokenizer: str) -> None:
    model = make_model(name, tokenizer)
    weights, count = model.attention(TEXT), len(model.tokens(TEXT))
    assert isinstance(weights, np.ndarray)
    assert weights.dtype == np.float32
    assert weights.shape == (2, 4, count, count)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    if name == "gpt2":
        assert not np.triu(weights, 1).any()
    np.testing.assert_array_equal(
        model.attention(TEXT, layers=[-1, 1], heads=[3, -4]), weights[[1, 0]][:, [2, 0]]
    )


def test_an_encoder_decoder_has_three_parts(make_model: MakeModel) -> None:
    model = make_model("t5-small", num_decoder_layers=3)
    own = model.attention(TEXT)
    assert isinstance(own, dict)
    source = len(model.tokens(TEXT))
    given = model.attention(TEXT, target="A boat", layers=[3])
    target = 1 + len(model.require_tokenizer().encode("A boat"))
    shapes = {part: array.shape for part, array in given.items()}  # the encoder has two layers
    assert shapes == {"decoder": (1, 4, target, target), "cross": (1, 4, target, source)}
    assert own["encoder"].shape == (2, 4, source, source)
    assert own["cross"].shape[-1] == source
    output = model.decoder_ids(model.input_ids(TEXT).tolist())
    assert own["decoder"].shape == (3, 4, len(output), len(output))
    assert output[0] == model.config.decoder_start_token_id


def test_a_prefix_language_model_reads_its_prompt_in_both_directions(
    make_model: MakeModel,
) -> None:
    network = make_model("gpt2", prefix_lm=True).network
    whole, half = (
        next(attention_maps(network, range(6), prefix=prefix)).weights[0] for prefix in (None, 3)
    )
    assert (whole > 0).all()
    assert (half[:3, :3] > 0).all()
    assert not half.triu(1)[:, 3:].any()


WRONG: list[tuple[dict[str, Any], type[FirthError], str]] = [
    (dict(layers=[3]), UsageError, "no layer 3.*1 to 2"),
    (dict(layers=[0]), UsageError, "no layer 0"),
    (dict(heads=[-5]), UsageError, "no head -5.*1 to 4"),
    (dict(heads=[]), UsageError, "empty"),
    (dict(layers=2), UsageError, "`layers`.*list"),
    (dict(target="A boat"), UsageError, "encoder-decoder"),
    (dict(text=" "), UsageError, "empty"),
    (dict(text=[TEXT]), UsageError, "`text`"),
    (dict(text="sea " * 100), MismatchError, "context is 64"),
]


@pytest.mark.parametrize(("arguments", "error", "facts"), WRONG)
def test_wrong_arguments(
    make_model: MakeModel, arguments: dict[str, Any], error: type[FirthError], facts: str
) -> None:
    with pytest.raises(error, match=facts):
        make_model("bert-tiny").attention(**{"text": TEXT, **arguments})


def test_a_model_without_attention(make_model: MakeModel) -> None:
    model = make_model("gpt2")
    other = Model(Bigram(model.config), model.tokenizer)
    with pytest.raises(MismatchError, match=r"Transformer.*Bigram"):
        other.attention(TEXT)


def test_an_encoder_decoder_without_a_language_head_needs_a_target(make_model: MakeModel) -> None:
    model = make_model("t5-small")
    assert isinstance(model.network, Transformer)
    model.network.heads = nn.ModuleDict()
    assert set(model.attention(TEXT, target="A boat")) == {"encoder", "decoder", "cross"}
    with pytest.raises(FirthError, match="head"):
        model.attention(TEXT)


def test_bfloat16(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    exact = model.attention(TEXT)
    half = model.to(torch.bfloat16).attention(TEXT)
    assert half.dtype == np.float32
    assert abs(exact - half).max() < 0.05


def test_int8_weights(bert: Path) -> None:
    exact, int8 = load(bert).attention(TEXT), load(bert, weights="int8").attention(TEXT)
    assert 0 < abs(exact - int8).max() < 0.05
