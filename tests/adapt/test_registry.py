"""Strategies as they are written on the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.adapt.lora import LoraConfig
from firth.adapt.registry import STRATEGIES, Strategy, parse_strategy, strategy_from_options
from firth.utils.errors import UsageError


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("full", {}),
        ("freeze:6", {"blocks": 6}),
        ("lora", {"rank": 8, "alpha": 16.0, "targets": ("all",), "dora": False}),
        ("lora:16", {"rank": 16}),
        ("lora: rank=16, alpha=32 ,targets=qkv+up", {"alpha": 32.0, "targets": ("qkv", "up")}),
        ("lora:rslora,dora=true,dropout=0.1", {"rslora": True, "dora": True, "dropout": 0.1}),
        ("adapters", {"kind": "houlsby", "reduction": 16}),
        ("adapters:pfeiffer,reduction=8", {"kind": "pfeiffer", "reduction": 8}),
        ("prefix:length=20,projection=512", {"length": 20, "projection": 512, "where": ()}),
        ("prefix:5,where=encoder+cross", {"length": 5, "where": ("encoder", "cross")}),
        ("prompt:tokens=1+2+3", {"length": 20, "tokens": (1, 2, 3)}),
        ("ia3", {"targets": ("key", "value"), "inputs": ("down",)}),
        ("bitfit", {}),
        ("probe", {"layer": "last"}),
        ("probe:-2", {"layer": "-2"}),
        ("probe:layer=mix", {"layer": "mix"}),
        ("gradual", {}),
    ],
)
def test_specs(spec: str, options: dict[str, object]) -> None:
    chosen = parse_strategy(spec)
    assert chosen.name == spec.partition(":")[0]
    assert {name: getattr(chosen.options, name) for name in options} == options
    assert parse_strategy(str(chosen)) == chosen


@pytest.mark.parametrize(
    ("spec", "facts"),
    [
        ("loar", ["'loar'", "did you mean lora?"]),
        ("lora:rnk=3", ["lora", "'rnk'", "did you mean rank?"]),
        ("lora:rank=x", ["rank", "lora", "integer", "'x'"]),
        ("lora:alpha=x", ["alpha", "lora", "number", "'x'"]),
        ("lora:dora=maybe", ["dora", "true or false", "'maybe'"]),
        ("lora:rank=3,rank=4", ["'lora:rank=3,rank=4'", "rank twice"]),
        ("lora:rank=0", ["rank", "at least 1", "not 0"]),
        ("lora:dropout=1", ["dropout", "1.0"]),
        ("adapters:pfeifer", ["kind", "houlsby or pfeiffer", "'pfeifer'"]),
        ("adapters:reduction=0", ["reduction", "at least 1", "not 0"]),
        ("freeze", ["blocks", "freeze:2"]),
        ("bitfit:3", ["bitfit", "'3'", "none"]),
    ],
)
def test_a_wrong_spec_is_refused(spec: str, facts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_strategy(spec)
    message = str(caught.value)
    assert "\n" not in message
    assert all(fact in message for fact in facts), message


def test_an_unknown_name_far_from_all_lists_them() -> None:
    with pytest.raises(UsageError, match=rf"there are {', '.join(STRATEGIES)}\."):
        parse_strategy("xyzzy")


names = st.lists(st.from_regex(r"[a-z][a-z_.]{0,8}", fullmatch=True), min_size=1, max_size=3)


@given(
    rank=st.integers(1, 999),
    alpha=st.floats(0.01, 1e6),
    targets=names,
    dora=st.booleans(),
)
def test_formatted_strategies_are_parsed_again(
    rank: int, alpha: float, targets: list[str], dora: bool
) -> None:
    options = {"rank": rank, "alpha": alpha, "targets": targets, "dora": dora}
    made = strategy_from_options("lora", options)
    assert made == Strategy("lora", LoraConfig(**{**options, "targets": tuple(targets)}))
    assert parse_strategy(str(made)) == made
