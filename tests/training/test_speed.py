"""FLOPs per token, from which MFU is computed, equal a manual count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firth.models.generator import generator_config
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.pretrain_config import resolve_pretrain_config
from firth.utils.devices import DeviceSpec

SHAPE = {"model.hidden_size": 32, "model.num_heads": 2, "model.ffn_size": 48}
SHAPE |= {"model.num_layers": 2, "max_length": "32"}


def per_token(shards: Path, preset: str, objective: str | None, **options: Any) -> float:
    tokenizer = Tokenizer.load(shards)
    overrides = SHAPE | {f"objective.{name}": value for name, value in options.items()}
    config = resolve_pretrain_config(
        preset, objective, tokenizer, {"steps": 1}, overrides, None, None, device=DeviceSpec()
    )
    assert config.model.vocab_size == len(tokenizer)
    return config.flops_per_token()


@pytest.mark.parametrize(
    ("preset", "objective", "options", "fraction"),
    [
        ("bert-tiny", "masked", {}, 0.15),
        ("encoder-tiny", "masked", {}, 0.3),  # its recipe hides more
        ("encoder-tiny", "masked", {"mask_prob": "0.4-0.1"}, 0.4),
        ("encoder-tiny", "masked-spans", {}, 0.3),
        ("decoder-tiny", "causal", {}, 1.0),
        ("decoder-tiny", "hybrid", {"mask_prob": 0.2}, 0.6),
    ],
)
def test_the_language_head_counts_for_predicted_positions(
    shards: Path, preset: str, objective: str, options: dict[str, Any], fraction: float
) -> None:
    tokens = len(Tokenizer.load(shards))
    gated = 3 if "-tiny" in preset and not preset.startswith("bert") else 2
    seen = 16 if preset.startswith("decoder") else 32  # a decoder sees half on average
    block = 4 * 32 * 32 + gated * 32 * 48 + 2 * 32 * seen
    expected = 6 * (2 * block + fraction * tokens * 32)
    assert per_token(shards, preset, objective, **options) == pytest.approx(expected)


def test_in_electra_only_the_generator_has_a_language_head(shards: Path) -> None:
    tokenizer = Tokenizer.load(shards)
    config = resolve_pretrain_config(
        "electra-small", None, tokenizer, {"steps": 1}, SHAPE, None, None, DeviceSpec()
    )
    small = generator_config(config.model)
    detector = 2 * (4 * 32 * 32 + 2 * 32 * 48 + 2 * 32 * 32)
    wide = small.hidden_size
    writer = 2 * (4 * wide * wide + 2 * wide * small.ffn_size + 2 * wide * 32)
    head = 0.15 * len(tokenizer) * small.token_embedding_size
    assert config.flops_per_token() == pytest.approx(6 * (detector + writer + head))
