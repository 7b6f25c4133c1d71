"""How much a run computes, counted by hand: what the share of the machine's best rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firth.pretraining import _flops, generator_config
from firth.text.tokenizer import Tokenizer
from firth.training.job import plan_job

SHAPE = {"model.width": 32, "model.heads": 2, "model.inner": 48, "model.layers": 2, "length": "32"}


def per_token(shards: Path, preset: str, objective: str | None, **options: Any) -> float:
    tokenizer = Tokenizer.load(shards)
    changes = SHAPE | {f"objective.{name}": value for name, value in options.items()}
    job = plan_job(preset, objective, tokenizer, {"steps": 1}, 0, changes, None, None, device="cpu")
    assert job.config.vocabulary == len(tokenizer)
    return _flops(job, 32)


@pytest.mark.parametrize(
    ("preset", "objective", "options", "share"),
    [
        ("bert-tiny", "masked", {}, 0.15),
        ("encoder-tiny", "masked", {}, 0.3),  # its recipe hides more
        ("encoder-tiny", "masked", {"rate": "0.4-0.1"}, 0.4),
        ("encoder-tiny", "masked-spans", {}, 0.3),
        ("decoder-tiny", "causal", {}, 1.0),
        ("decoder-tiny", "hybrid", {"rate": 0.2}, 0.6),
    ],
)
def test_the_head_counts_as_often_as_it_is_asked(
    shards: Path, preset: str, objective: str, options: dict[str, Any], share: float
) -> None:
    tokens = len(Tokenizer.load(shards))
    gated = 3 if "-tiny" in preset and not preset.startswith("bert") else 2
    seen = 16 if preset.startswith("decoder") else 32  # a decoder sees half on average
    block = 4 * 32 * 32 + gated * 32 * 48 + 2 * 32 * seen
    expected = 6 * (2 * block + share * tokens * 32)
    assert per_token(shards, preset, objective, **options) == pytest.approx(expected)


def test_of_two_networks_the_generator_alone_is_asked_for_tokens(shards: Path) -> None:
    tokenizer = Tokenizer.load(shards)
    job = plan_job(
        "electra-small", None, tokenizer, {"steps": 1}, 0, SHAPE, None, None, device="cpu"
    )
    small = generator_config(job.config)
    detector = 2 * (4 * 32 * 32 + 2 * 32 * 48 + 2 * 32 * 32)
    wide = small.width
    writer = 2 * (4 * wide * wide + 2 * wide * small.inner + 2 * wide * 32)
    head = 0.15 * len(tokenizer) * small.table_width
    assert _flops(job, 32) == pytest.approx(6 * (detector + writer + head))
