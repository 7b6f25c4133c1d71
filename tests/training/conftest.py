"""Small shards to train on, runs that are killed, and what their logs hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from firth.data.stories import write_stories
from firth.jobs.preparation import prepare
from firth.objectives.batch import Batch
from firth.tokenizers.trainer import train_tokenizer
from firth.training.loop import Callbacks
from firth.training.run_directory import read_metrics


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


class Killed(Exception):
    """Ends a run in this process as a kill would end its own."""


def kill_at(step: int) -> Callbacks:
    """Return callbacks that end a run before the first micro-batch of a step."""

    def kill(now: int, batch: Batch) -> None:
        if now == step:
            raise Killed

    return Callbacks(before_micro_batch=kill)


def notes(run: Path) -> list[str]:
    """Return the notes in a run's log."""
    return [line["note"] for line in read_metrics(run) if line["kind"] == "note"]


def losses(run: Path, kind: str = "step") -> list[float]:
    """Return the losses of the logged steps, or of the validations."""
    return [line["loss"] for line in read_metrics(run) if line["kind"] == kind]
