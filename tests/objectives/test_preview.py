"""Previews of the objectives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firth.data.shards import Shards
from firth.jobs.preparation import prepare
from firth.objectives.preview import show_objectives
from firth.objectives.registry import OBJECTIVES
from firth.tokenizers.trainer import train_tokenizer
from firth.utils.errors import UsageError
from tests.conftest import Result


def test_every_objective_has_a_preview(shards: Path) -> None:
    examples, reasons = show_objectives(Shards(shards))
    assert [example.objective for example in examples] == list(OBJECTIVES)
    assert not reasons
    by_name = {example.objective: example for example in examples}
    masked = by_name["masked"]
    hidden = [word for word in masked.reads if word.role in ("hidden", "changed", "kept")]
    assert len(hidden) == len(masked.predicts["masked"])
    assert masked.reads[0].role == "special"
    assert set(by_name["masked-nsp"].predicts) == {"masked", "next sentence"}
    spans = by_name["span-corruption"]
    assert next(w.token for w in spans.reads if w.role == "hidden") == "<extra_id_0>"
    replaced = by_name["replaced"]
    changed = sum(word.role == "changed" for word in replaced.reads)
    assert changed == replaced.predicts["replaced"].count("replaced")


def test_missing_tokens_are_reported(sample: Path, tmp_path: Path) -> None:
    train_tokenizer([sample], kind="bpe", vocab_size=400)[0].save(tmp_path / "gpt2")
    out = tmp_path / "shards"
    prepare([sample], tokenizer=tmp_path / "gpt2", out=out, valid_fraction=0)
    examples, reasons = show_objectives(Shards(out))
    assert [example.objective for example in examples] == ["causal", "prefix"]
    assert "has no cls or bos" not in reasons["masked"]  # <|endoftext|> is the bos token
    assert "mask token" in reasons["masked"]
    assert "--sentinels 100" in reasons["span-corruption"]
    with pytest.raises(UsageError, match="mask token"):
        show_objectives(Shards(out), ["masked"])


def test_command_line(shards: Path, firth: Callable[..., Result]) -> None:
    listed = firth("objectives").stdout
    assert all(name in listed for name in OBJECTIVES)
    values = firth("objectives", "--data", shards, "--objective", "masked", "--json").json
    (example,) = values["examples"]
    assert example["objective"] == "masked"
    shown = firth("objectives", "--data", shards)
    assert "[MASK]" in shown.stdout
    unknown = firth("objectives", "--data", shards, "--objective", "magic")
    assert (unknown.returncode, "magic" in unknown.error) == (2, True)
    short = firth("objectives", "--data", shards, "--objective", "masked", "--length", 1)
    assert short.returncode == 2
    assert "no room for text" in short.error
