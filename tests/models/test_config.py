"""A configuration goes through JSON unharmed, and says in one sentence what cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from firth.errors import InputError
from firth.models.config import CHOICES, ModelConfig
from tests.models.small import KINDS, small

SIZE: dict[str, Any] = dict(
    architecture="decoder", vocabulary=100, width=64, layers=2, heads=4, inner=256, context=32
)


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_through_json_unharmed(kind: str) -> None:
    config = KINDS[kind]
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_what_is_left_out_is_as_usual() -> None:
    config = ModelConfig.from_dict(SIZE)
    assert (config.kv_heads, config.head_width, config.decoder_layers) == (4, 16, 0)
    assert config.scale == 0.25
    assert config.local_theta == config.theta
    assert small("encoder-decoder").decoder_layers == 2


def test_widths_that_follow_from_others() -> None:
    config = small("encoder", width=64, embedding_width=24, bottleneck=32)
    assert (config.block_width, config.table_width, config.head_width) == (32, 24, 8)
    config = small("encoder", width=64)
    assert (config.block_width, config.table_width, config.head_width) == (64, 64, 16)


@pytest.mark.parametrize(
    ("architecture", "has"),
    [
        ("encoder", (True, False)),
        ("decoder", (False, True)),
        ("encoder-decoder", (True, True)),
    ],
)
def test_what_an_architecture_has(architecture: str, has: tuple[bool, bool]) -> None:
    config = small(architecture)
    assert (config.has_encoder, config.has_decoder) == has


ERRORS = {
    "indivisible": ({"width": 66}, "A width of 66 cannot be divided among 4 heads"),
    "indivisible bottleneck": ({"bottleneck": 30}, "A width of 30 cannot be divided among 4"),
    "kv heads": ({"kv_heads": 3}, "4 heads cannot share 3 key-value heads."),
    "odd rotary": (
        {"positions": "rotary", "head_width": 5},
        "Rotary positions need an even head_width, not 5.",
    ),
    "windowed layers": ({"windowed": [2], "window": 4}, "outside 0 to 1"),
    "near field": ({"kv_head": 2}, "no field 'kv_head'; did you mean kv_heads?"),
    "far field": ({"xyzzy": 2}, "no field 'xyzzy'; there are architecture, vocabulary"),
    "text for number": ({"width": "64"}, "The field width of a model is int, not '64'."),
    "fraction": ({"layers": 2.5}, "The field layers of a model is int, not 2.5."),
    "bool for number": ({"heads": True}, "The field heads of a model is int, not True."),
    "number for bool": ({"tied": 1}, "The field tied of a model is bool, not 1."),
    "nothing": ({"width": None}, "The field width of a model is int, not None."),
    "number for text": ({"norm": 3}, "The field norm of a model is str, not 3."),
    "number for list": ({"windowed": 1}, "The field windowed of a model"),
    "negative kv heads": ({"kv_heads": -2}, "kv_heads must be between 0 and "),
    "endless layers": ({"layers": 10**9}, "layers must be between 1 and 10,000, not 1000000000."),
    "dropout": ({"dropout": 1.5}, "dropout is a probability, which 1.5 is not."),
    "no window": ({"windowed": [0]}, "The layers in windowed need a window of at least 1."),
    "output width": ({"output_width": 32}, "A tied output matrix is as wide as the table, 64"),
    **{
        f"{sign} {name}": ({name: value}, f"{name} must be between 1 and ")
        for name in ("vocabulary", "width", "layers", "heads", "inner", "context")
        for sign, value in (("no", 0), ("negative", -2))
    },
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_cannot_be_is_said_in_one_sentence(case: str) -> None:
    fields, sentence = ERRORS[case]
    with pytest.raises(InputError) as error:
        ModelConfig.from_dict({**SIZE, **fields})
    said = str(error.value)
    assert sentence in said
    assert said[-1] in ".?"
    assert "\n" not in said


@pytest.mark.parametrize("name", CHOICES)
def test_an_unknown_choice_lists_the_known(name: str) -> None:
    with pytest.raises(InputError) as error:
        ModelConfig.from_dict({**SIZE, name: "round"})
    known = ", ".join(CHOICES[name])
    assert str(error.value) == f"{name} cannot be 'round'; known are {known}."


def test_missing_fields_are_named_together() -> None:
    given = {name: SIZE[name] for name in ("architecture", "width", "heads", "inner")}
    with pytest.raises(InputError, match=r"lacks vocabulary, layers, context\.$"):
        ModelConfig.from_dict(given)


def test_a_head_width_of_its_own_frees_the_width() -> None:
    assert ModelConfig.from_dict({**SIZE, "width": 66, "head_width": 10}).head_width == 10
