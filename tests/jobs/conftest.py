"""A tokenizer and a long text for `prepare`, and the checksums of what it writes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from firth.tokenizers.trainer import train_tokenizer
from tests.conftest import SAMPLE


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small WordPiece tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "sample.txt").write_text(SAMPLE, encoding="utf-8")
    train_tokenizer([folder / "sample.txt"], kind="wordpiece", vocab_size=400)[0].save(folder)
    return folder


@pytest.fixture(scope="session")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 1 MB in 2,000 different documents."""
    path = tmp_path_factory.mktemp("text") / "long.txt"
    draw = random.Random(0)
    words = SAMPLE.split()
    documents = (
        f"Story {i}. " + " ".join(draw.choices(words, k=draw.randint(1, 200))) for i in range(2000)
    )
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


def sums(folder: Path) -> dict[str, Any]:
    index = json.loads((folder / "index.json").read_bytes())
    return {
        shard["name"]: shard["sha256"]
        for split in index["splits"].values()
        for shard in split["shards"]
    }
