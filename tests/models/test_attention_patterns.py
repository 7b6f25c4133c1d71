"""Attention patterns: connections counted by hand and by formula, and their drawing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firth.models.attention_patterns import attention_patterns
from firth.models.presets import PRESETS, preset
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import UsageError
from tests.conftest import Result


def connections(name: str, length: int, **options: int) -> dict[str, int]:
    patterns = attention_patterns(preset(name).config, length, **options)
    return {p.pattern: p.connections for p in patterns}


def test_the_connections_of_the_lectures() -> None:
    """For six tokens, BERT has 36 connections and GPT 21 (lower triangular)."""
    assert connections("bert-base", 6) == {"bidirectional": 36}
    assert connections("gpt2", 6) == {"causal": 21}
    assert connections("t5-small", 6) == {"bidirectional": 36, "causal": 21, "cross": 36}
    (causal,) = attention_patterns(preset("gpt2").config, 4)
    assert causal.visible.astype(int).tolist() == np.tri(4, dtype=int).tolist()


def test_windows_and_prefixes_counted_by_hand() -> None:
    # 2 + 3 + 3 + 3 + 3 + 2 with one neighbour on each side
    assert connections("modernbert-base", 6, window=1) == {
        "bidirectional": 36,
        "bidirectional window": 16,
    }
    assert connections("mistral-7b", 6, window=2) == {"causal window": 1 + 2 + 4 * 3}
    assert connections("gpt2", 6, prefix=3) == {"prefix": 3 * 3 + 4 + 5 + 6}
    assert connections("gpt2", 6, prefix=1) == {"causal": 21}


TRANSFORMERS = [name for name, row in PRESETS.items() if isinstance(row.config, TransformerConfig)]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_formulas_and_layers_of_every_preset(name: str) -> None:
    config = preset(name).config
    patterns = attention_patterns(config, 7, window=2 if config.windowed_layers else 0)
    for pattern in patterns:
        assert pattern.connections == pattern.connections_at(7)
    layers = [i for p in patterns if p.pattern != "cross" for i in p.layers]
    assert len(layers) == config.num_layers + config.num_decoder_layers


@pytest.mark.parametrize("prefix", range(2, 8))
def test_the_formula_of_a_prefix(prefix: int) -> None:
    (pattern,) = attention_patterns(preset("gpt2").config, 7, prefix=prefix)
    assert pattern.connections == pattern.connections_at(7)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bert-base", {"prefix": 2}),
        ("bert-base", {"window": 2}),
        ("gpt2", {"prefix": 7}),
        ("mistral-7b", {"prefix": 2}),
    ],
)
def test_options_that_do_not_apply(name: str, options: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        attention_patterns(preset(name).config, 6, **options)


def test_masks_on_the_command_line(firth_here: Callable[..., Result], tmp_path: Path) -> None:
    shown = firth_here("presets", "gpt2", "--masks", "--png", "masks.png")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("■") == 21 + 1  # and the key
    assert "21 connections" in shown.stdout
    assert (tmp_path / "masks.png").read_bytes().startswith(b"\x89PNG")
    assert firth_here("presets", "gpt2", "--masks", "--png", "masks.png").returncode == 2
    assert firth_here("presets", "gpt2", "--masks", "--png", "masks.jpg").returncode == 2
    wide = firth_here("presets", "gpt2", "--masks", "--text", "我们 ate $x$", "--png", "wide.png")
    assert "1 我们  ■" in wide.stdout
    assert "2 ate   ■" in wide.stdout
    text = "--text", "a b c"
    (mask,) = firth_here("presets", "bert-base", "--masks", *text, "--json").json["masks"]
    assert (mask["connections"], mask["visible"]) == (9, [[1, 1, 1]] * 3)
    for wrong in (("--masks",), ("gpt2", *text), ("gpt2", "--masks", "--text", " ")):
        assert firth_here("presets", *wrong).returncode == 2
