"""How a command line names a way of fine-tuning."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.adapt.lora import Lora
from firth.adapt.table import STRATEGIES, Strategy, from_options, strategy
from firth.errors import Misuse


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("full", {}),
        ("freeze:6", {"blocks": 6}),
        ("freeze:blocks=6", {"blocks": 6}),
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
        ("probe", {}),
        ("gradual", {}),
    ],
)
def test_specs(spec: str, options: dict[str, object]) -> None:
    chosen = strategy(spec)
    assert chosen.name == spec.partition(":")[0]
    assert {name: getattr(chosen.options, name) for name in options} == options
    assert strategy(str(chosen)) == chosen


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("loar", "There is no strategy 'loar'; did you mean lora?"),
        ("lora:rnk=3", "lora has no option 'rnk'; did you mean rank?"),
        ("lora:rank=x", "The option rank of lora is a whole number, not 'x'."),
        ("lora:alpha=x", "The option alpha of lora is a number, not 'x'."),
        ("lora:dora=maybe", "The option dora of lora is true or false, not 'maybe'."),
        ("lora:rank=3,rank=4", "'lora:rank=3,rank=4' says rank twice."),
        ("lora:rank=0", "The rank of lora must be at least 1, not 0."),
        ("lora:dropout=1", "dropout is a probability below 1, which 1.0 is not."),
        ("adapters:pfeifer", "The option kind of adapters is houlsby or pfeiffer, not 'pfeifer'."),
        ("adapters:reduction=0", "The reduction of adapters must be at least 1, not 0."),
        ("freeze", "freeze needs the number of blocks, as in freeze:2."),
        ("bitfit:3", "bitfit has no option '3'; there are none."),
    ],
)
def test_one_sentence_says_what_is_wrong(spec: str, sentence: str) -> None:
    with pytest.raises(Misuse) as caught:
        strategy(spec)
    assert str(caught.value) == sentence


def test_an_unknown_name_far_from_all_lists_them() -> None:
    with pytest.raises(Misuse, match=rf"there are {', '.join(STRATEGIES)}\."):
        strategy("xyzzy")


names = st.lists(st.from_regex(r"[a-z][a-z_.]{0,8}", fullmatch=True), min_size=1, max_size=3)


@given(
    rank=st.integers(1, 999),
    alpha=st.floats(0.01, 1e6),
    targets=names,
    dora=st.booleans(),
)
def test_what_is_written_is_read_again(
    rank: int, alpha: float, targets: list[str], dora: bool
) -> None:
    options = {"rank": rank, "alpha": alpha, "targets": targets, "dora": dora}
    made = from_options("lora", options)
    assert made == Strategy("lora", Lora(**{**options, "targets": tuple(targets)}))
    assert strategy(str(made)) == made


def test_every_row_has_options_with_defaults_that_can_be_written() -> None:
    for name, row in STRATEGIES.items():
        assert row.about
        assert (row.hangs is None) != (row.opens is None)
        needed = [field for field in fields(row.options) if field.name == "blocks"]
        chosen = strategy(f"{name}:1" if needed else name)
        assert strategy(str(chosen)) == chosen
