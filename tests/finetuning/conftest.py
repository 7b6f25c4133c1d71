"""Tiny networks that know nothing yet, and the stories' task files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firth.finetuning import Tuned, finetune
from firth.model import Model
from firth.models.initial import initialise
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.text.stories import write_stories
from firth.text.tokenizer import Tokenizer
from firth.text.vocabulary import train_tokenizer

SIZE = {"layers": 2, "width": 32, "heads": 2, "inner": 48, "head_width": 0, "kv_heads": 0}
PRESETS = {"encoder": "encoder-tiny", "decoder": "decoder-tiny", "encoder-decoder": "seq2seq-tiny"}
QUICK = {"steps": 6, "batch": "4", "validate_every": 0.5, "precision": "fp32", "length": "48"}


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stories with their task files."""
    folder = tmp_path_factory.mktemp("stories")
    write_stories(folder, words=30_000, seed=0)
    return folder


@pytest.fixture(scope="session")
def tokenizer(stories: Path) -> Tokenizer:
    """A small vocabulary of the stories."""
    options = {"kind": "wordpiece", "vocab_size": 800, "lowercase": True, "sentinels": 20}
    return train_tokenizer([stories / "train.txt"], workers=1, **options)[0]


def save(name: str, tokenizer: Tokenizer, path: Path, **changes: Any) -> Path:
    """A network of a preset's kind but tiny, with first weights only."""
    row = preset(name)
    ids = tokenizer.special_ids
    roles = {"padding_id": ids["pad"], "begin_id": ids["cls"], "end_id": ids["sep"]}
    if row.config.architecture == "encoder-decoder":
        roles["start_id"], changes["decoder_layers"] = ids["pad"], 0
    sizes = SIZE | {"vocabulary": len(tokenizer), "context": 128} | roles | changes
    network = initialise(Transformer(replace(row.config, **sizes), row.heads), seed=0)
    Model(network, tokenizer).save(path)
    return path


@pytest.fixture(scope="session")
def models(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One network of each architecture."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: save(name, tokenizer, folder / kind) for kind, name in PRESETS.items()}


@pytest.fixture
def tune(models: dict[str, Path], stories: Path, tmp_path: Path) -> Callable[..., Tuned]:
    """Fine-tune a tiny network on a task of the stories, for a few steps."""

    def run(architecture: str, task: str, folder: str, **options: Any) -> Tuned:
        end = {"tag": "conll", "span": "json", "lm": "txt"}.get(task, "tsv")
        files = {"train": stories / folder / f"train.{end}", "dev": stories / folder / f"dev.{end}"}
        if task == "lm":
            files = {"train": stories / "dev.txt", "dev": stories / "test.txt"}
        given = {"limit": 24, "out": tmp_path / "run", **files, **options}
        given["changes"] = QUICK | dict(given.get("changes", {}))
        return finetune(models[architecture], task=task, **given)

    return run
