"""Tiny untrained networks, the stories' task files, and one fine-tuned run of each task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firth.data.stories import write_stories
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.model import Model
from firth.models.initialization import initialise
from firth.models.presets import preset
from firth.models.transformer import Transformer
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from tests.jobs.finetuning.toys import TINY, Files, every_task

SIZE = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "ffn_size": 48}
SIZE |= {"head_dim": 0, "num_kv_heads": 0}
PRESETS = {"encoder": "encoder-tiny", "decoder": "decoder-tiny", "encoder-decoder": "seq2seq-tiny"}
QUICK = {"steps": 6, "batch_size": "4", "validate_every": 0.5, "precision": "fp32"}
QUICK |= {"max_length": "48"}


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


def save(name: str, tokenizer: Tokenizer, path: Path, **overrides: Any) -> Path:
    """Save an untrained network of a preset's kind, but tiny."""
    row = preset(name)
    ids = tokenizer.special_ids
    roles = {"pad_token_id": ids["pad"], "bos_token_id": ids["cls"], "eos_token_id": ids["sep"]}
    if row.config.architecture == "encoder-decoder":
        roles["decoder_start_token_id"], overrides["num_decoder_layers"] = ids["pad"], 0
    sizes = SIZE | {"vocab_size": len(tokenizer), "max_positions": 128} | roles | overrides
    network = initialise(Transformer(replace(row.config, **sizes), row.heads), seed=0)
    Model(network, tokenizer).save(path)
    return path


@pytest.fixture(scope="session")
def models(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One network of each architecture."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: save(name, tokenizer, folder / kind) for kind, name in PRESETS.items()}


@pytest.fixture
def tune(models: dict[str, Path], stories: Path, tmp_path: Path) -> Callable[..., FinetuneResult]:
    """Fine-tune a tiny network on a task of the stories, for a few steps."""

    def run(architecture: str, task: str, folder: str, **options: Any) -> FinetuneResult:
        end = {"tag": "conll", "span": "json", "lm": "txt"}.get(task, "tsv")
        files = {"train": stories / folder / f"train.{end}", "dev": stories / folder / f"dev.{end}"}
        if task == "lm":
            files = {"train": stories / "dev.txt", "dev": stories / "test.txt"}
        given = {"limit": 24, "out": tmp_path / "run", **files, **options}
        given["overrides"] = QUICK | dict(given.get("overrides", {}))
        return finetune(models[architecture], task=task, **given)

    return run


@pytest.fixture(scope="session")
def task_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    """Train and dev files of every task."""
    return every_task(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def run_of(
    models: dict[str, Path],
    task_files: dict[str, Files],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """The run of a task, fine-tuned when it is first needed."""
    folder, architectures = tmp_path_factory.mktemp("runs"), {"seq2seq": "encoder-decoder"}

    def make(task: str) -> Path:
        out = folder / task
        if not out.exists():
            train, dev = task_files[task]
            model = models[architectures.get(task, "decoder" if task == "lm" else "encoder")]
            overrides = TINY | {"steps": 40, "learning_rate": 1e-2}
            finetune(model, task=task, train=train, dev=dev, out=out, overrides=overrides)
        return out

    return make
