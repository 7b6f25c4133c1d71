"""Small shards to learn from, and a way to train in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from firth.data.stories import write_stories
from firth.jobs.preparation import prepare
from firth.tokenizers.trainer import train_tokenizer


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stories of 20,000 words, tokenised, with a validation part."""
    folder = tmp_path_factory.mktemp("small")
    write_stories(folder / "stories", words=20_000, seed=0)
    train, dev = folder / "stories/train.txt", folder / "stories/dev.txt"
    options = {"kind": "wordpiece", "vocab_size": 600, "lowercase": True, "sentinels": 40}
    tokenizer, _ = train_tokenizer([train], workers=1, **options)
    tokenizer.save(folder / "tokenizer")
    out = folder / "shards"
    prepare([train], tokenizer=folder / "tokenizer", out=out, valid=[dev], workers=1)
    return out


SMALL = {
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.ffn_size": 48,
    "max_length": "32",
    "batch_tokens": "256",
    "precision": "fp32",
    "validate_tokens": 256,
    "validate_every": 0.5,
}

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Start:
    """Begin `firth pretrain …` on one thread; returns the process."""

    def begin(*arguments: str | Path, **overrides: object) -> subprocess.Popen[str]:
        pairs = [f"{key.replace('__', '.')}={value}" for key, value in (SMALL | overrides).items()]
        command = [sys.executable, "-m", "firth", "pretrain", *map(str, arguments)]
        for pair in pairs:
            command += ["--set", pair]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    return begin
