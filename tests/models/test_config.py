"""A model config survives JSON, and an impossible one is rejected with the field's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from firth.models.config import CHOICES
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import InputError
from tests.models.small import KINDS, small

SIZE: dict[str, Any] = dict(
    architecture="decoder",
    vocab_size=100,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    ffn_size=256,
    max_positions=32,
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_survives_json(kind: str) -> None:
    config = KINDS[kind]
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_defaults_follow_from_the_sizes() -> None:
    config = TransformerConfig.from_dict(SIZE)
    assert (config.num_kv_heads, config.head_dim, config.num_decoder_layers) == (4, 16, 0)
    assert config.scale == 0.25
    assert config.local_rope_theta == config.rope_theta
    assert small("encoder-decoder").num_decoder_layers == 2


def test_widths_that_follow_from_others() -> None:
    config = small("encoder", hidden_size=64, embedding_size=24, bottleneck_size=32)
    assert (config.block_size, config.token_embedding_size, config.head_dim) == (32, 24, 8)
    config = small("encoder", hidden_size=64)
    assert (config.block_size, config.token_embedding_size, config.head_dim) == (64, 64, 16)


# Fields that cannot be right, and what the error must name.
ERRORS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "indivisible": ({"hidden_size": 66}, ("66", "4 heads", "head_dim")),
    "indivisible bottleneck": ({"bottleneck_size": 30}, ("30", "4 heads")),
    "kv heads": ({"num_kv_heads": 3}, ("num_heads", "4", "num_kv_heads", "3")),
    "odd rotary": ({"position_embedding": "rotary", "head_dim": 5}, ("head_dim", "5")),
    "windowed layers": ({"windowed_layers": [2], "window": 4}, ("windowed_layers", "0 to 1")),
    "near field": ({"kv_heads": 2}, ("'kv_heads'", "did you mean num_kv_heads")),
    "far field": ({"xyzzy": 2}, ("'xyzzy'", "architecture, vocab_size")),
    "text for number": ({"hidden_size": "64"}, ("hidden_size", "int", "'64'")),
    "bool for number": ({"num_heads": True}, ("num_heads", "int", "True")),
    "number for bool": ({"tie_embeddings": 1}, ("tie_embeddings", "bool", "1")),
    "number for list": ({"windowed_layers": 1}, ("windowed_layers", "1")),
    "negative kv heads": ({"num_kv_heads": -2}, ("num_kv_heads", "0", "-2")),
    "endless layers": ({"num_layers": 10**9}, ("num_layers", "10,000", "1000000000")),
    "dropout": ({"dropout": 1.5}, ("dropout", "1.5")),
    "no window": ({"windowed_layers": [0]}, ("windowed_layers", "window", "1")),
    "output width": ({"output_embedding_size": 32}, ("output_embedding_size", "32", "64")),
    **{
        f"{sign} {name}": ({name: value}, (name, "1", str(value)))
        for name in list(SIZE)[1:]
        for sign, value in (("no", 0), ("negative", -2))
    },
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_impossible_config_is_rejected_in_one_sentence(case: str) -> None:
    fields, facts = ERRORS[case]
    with pytest.raises(InputError) as error:
        TransformerConfig.from_dict({**SIZE, **fields})
    message = str(error.value)
    assert all(fact in message for fact in facts), message
    assert message[-1] in ".?"
    assert "\n" not in message


@pytest.mark.parametrize("name", CHOICES)
def test_an_unknown_choice_lists_the_known(name: str) -> None:
    with pytest.raises(InputError) as error:
        TransformerConfig.from_dict({**SIZE, name: "round"})
    assert all(fact in str(error.value) for fact in (name, "'round'", *CHOICES[name]))


def test_missing_fields_are_named_together() -> None:
    given = {name: SIZE[name] for name in ("architecture", "hidden_size", "num_heads")}
    with pytest.raises(InputError, match="vocab_size, max_positions, num_layers, ffn_size"):
        TransformerConfig.from_dict(given)


def test_a_head_width_of_its_own_frees_the_width() -> None:
    assert TransformerConfig.from_dict({**SIZE, "hidden_size": 66, "head_dim": 10}).head_dim == 10
