"""A vocabulary, and a million tokens of random text in packed sequences of many lengths."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firth.data.packing import PackedSequences
from firth.data.stories import write_stories
from firth.jobs.preparation import prepare
from firth.tokenizers.tokenizer import Vocabulary
from firth.tokenizers.trainer import train_tokenizer
from firth.utils.rng import derive_keys

SIZE = 1000  # ids: 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK], the last 100 sentinels


@cache
def make_vocabulary() -> Vocabulary:
    """Make a vocabulary in which every third token continues a word."""
    ids = np.arange(SIZE)
    return Vocabulary(
        ids={"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        sentinels=ids[:-101:-1],
        special=(ids < 5) | (ids >= SIZE - 100),
        begins=ids % 3 != 0,
        ends=np.zeros(SIZE, dtype=np.bool_),
    )


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


def text(
    seed: int, sequences: int = 8000, longest: int = 240, framed: bool = True
) -> PackedSequences:
    draw = np.random.default_rng(seed)
    rows = [draw.integers(5, SIZE - 100, size=n) for n in draw.integers(10, longest, sequences)]
    if framed:
        rows = [np.concatenate(([2], row, [3])) for row in rows]
    return PackedSequences.join(rows, derive_keys(seed, np.arange(sequences)))


@pytest.fixture(scope="session")
def million() -> PackedSequences:
    """Sequences `[CLS] … [SEP]`."""
    return text(0)


@pytest.fixture(scope="session")
def bare_million() -> PackedSequences:
    """Sequences without special tokens, in sentences of ten tokens."""
    packed = text(1, framed=False)
    starts = np.flatnonzero(packed.offsets % 10 == 0)
    return PackedSequences(packed.tokens, packed.starts, packed.keys, sentences=starts)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of stories, with sentinels in the vocabulary."""
    folder = tmp_path_factory.mktemp("objectives")
    write_stories(folder / "stories", words=20_000, seed=0)
    train, out = folder / "stories/train.txt", folder / "shards"
    options: dict[str, Any] = {"kind": "wordpiece", "vocab_size": 600, "sentinels": 100}
    train_tokenizer([train], workers=1, **options)[0].save(folder / "tokenizer")
    prepare([train], tokenizer=folder / "tokenizer", out=out, valid_fraction=0, workers=1)
    return out
