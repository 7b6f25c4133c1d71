"""The embedded models and the stories of their tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

import firth
from scripts.embedded_corpus import TASK_SEED, TASK_WORDS


@pytest.fixture(scope="session")
def encoder() -> firth.Model:
    return firth.load("stories-encoder")


@pytest.fixture(scope="session")
def decoder() -> firth.Model:
    return firth.load("stories-decoder")


@pytest.fixture(scope="session")
def seq2seq() -> firth.Model:
    return firth.load("stories-seq2seq")


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stories that `firth stories` writes; the models were trained on others."""
    out = tmp_path_factory.mktemp("embedded") / "stories"
    firth.write_stories(out, words=TASK_WORDS, seed=TASK_SEED)
    return out
