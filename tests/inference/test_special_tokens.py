"""Special tokens of a checkpoint: ids outside the vocabulary, several EOS tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth


def set_values(file: Path, **values: Any) -> None:
    """Change fields of a JSON file."""
    known = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**known, **values}))


def test_ids_outside_the_vocabulary_are_ignored(
    gpt: Path, lines: Path, verb: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """GPT-2's config has 50256 by default, whatever the size of the vocabulary."""
    set_values(gpt / "config.json", bos_token_id=50256, eos_token_id=50256, pad_token_id=-1)
    done = verb("generate", gpt, "The sea", "--max-new-tokens", 3, "--json")
    assert done.exit_code == 0, done.output
    assert all(fact in caplog.text for fact in ("50256", "config.json", "400"))
    assert verb("evaluate", gpt, "--task", "lm", "--data", lines).exit_code == 0
    model = firth.load(gpt)
    assert model.config.special_token_ids == {}
    expected = firth.load(gpt).generate("The sea", max_new_tokens=3)
    assert json.loads(done.stdout)["completions"][0]["text"] == expected
