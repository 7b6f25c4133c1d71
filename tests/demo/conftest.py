"""A finished demo with tiny budgets, and tiny untrained networks as the embedded models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import firth.embedded
from firth.data.stories import write_stories
from firth.demo import chapters
from firth.demo.budgets import DemoBudget
from firth.demo.chapters import Demo, run_demo
from firth.tokenizers.trainer import train_tokenizer
from tests.jobs.finetuning.conftest import PRESETS, save

TINY = DemoBudget(
    words=12_000,
    vocab_size=600,
    pretraining_tokens=3000,
    labels=(6, 12),
    label_steps=2,
    sentences=8,
    name_steps=2,
    questions=4,
    question_steps=2,
    test_questions=3,
    searched=12,
    search_queries=2,
    prompted=4,
    lora_labels=12,
)
NAMES = {"encoder": "encoder", "decoder": "decoder", "encoder-decoder": "seq2seq"}


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models with the names of the embedded ones."""
    folder = tmp_path_factory.mktemp("embedded")
    write_stories(folder / "stories", words=12_000, seed=1)
    text = [folder / "stories/train.txt"]
    options = {"kind": "wordpiece", "vocab_size": 600, "lowercase": True, "sentinels": 20}
    tokenizer, _ = train_tokenizer(text, workers=1, **options)
    for kind, name in NAMES.items():
        save(PRESETS[kind], tokenizer, folder / f"stories-{name}")
    return folder


@contextmanager
def tiny(models: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(firth.embedded, "HOME", models)
        patch.setattr(chapters, "FULL", TINY)
        yield


@pytest.fixture
def tiny_demo(tiny_models: Path) -> Iterator[None]:
    """Make the demo use tiny budgets and tiny models."""
    with tiny(tiny_models):
        yield


@pytest.fixture(scope="session")
def demo(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """All chapters of the demo."""
    with tiny(tiny_models):
        return run_demo(tmp_path_factory.mktemp("demo") / "made")


@pytest.fixture(scope="session")
def page(demo: Demo) -> Path:
    """The page of the demo."""
    return demo.page
