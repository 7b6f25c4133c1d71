"""Killed and resumed = never stopped, to the last bit of the weights that are saved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.jobs.finetuning import FinetuneResult, finetune
from firth.objectives.batch import Batch
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.loop import Callbacks
from firth.utils.errors import UsageError
from tests.jobs.finetuning.conftest import save
from tests.jobs.finetuning.toys import TOYS, coloured, sums

# Six steps of four examples, sixteen in all: an epoch and a half.
SIX = {"steps": 6, "batch_size": 4, "max_length": 32, "precision": "fp32", "learning_rate": 1e-2}
KEPT = {"checkpoint_every": 2, "validate_every": 0.3}


class Killed(Exception):
    """As if the power had gone."""


def fails_at(step: int) -> Callbacks:
    """Whatever is to be learned at a step, it ends there."""

    def fail(now: int, batch: Batch) -> None:
        if now == step:
            raise Killed

    return Callbacks(before_micro_batch=fail)


@pytest.fixture(scope="module")
def forgetful(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Networks with dropout, whose draws must come again after a resume."""
    folder = tmp_path_factory.mktemp("forgetful")
    presets = {"encoder": "encoder-tiny", "encoder-decoder": "seq2seq-tiny"}
    return {
        kind: save(name, tokenizer, folder / kind, dropout=0.1) for kind, name in presets.items()
    }


@pytest.fixture
def run(forgetful: dict[str, Path], stories: Path, tmp_path: Path) -> Callable[..., FinetuneResult]:
    def tune(name: str, task: str, **options: Any) -> FinetuneResult:
        train, dev = TOYS[task](tmp_path)
        model = forgetful["encoder-decoder" if task == "seq2seq" else "encoder"]
        overrides = SIX | KEPT | options.pop("overrides", {})
        files = {"train": train, "dev": options.pop("dev", dev), "out": tmp_path / name}
        if options.pop("remembers", False):
            options["replay"] = stories / "dev.txt"
        return finetune(model, task=task, overrides=overrides, **files, **{"limit": 16, **options})

    return tune


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("classify", {}),
    "tag": ("tag", {}),
    "span": ("span", {}),
    "seq2seq": ("seq2seq", {}),
    "lora": ("classify", {"strategy": "lora"}),
    "gradual": ("classify", {"strategy": "gradual", "limit": 8}),  # two steps to an epoch
    "probe-then-full": ("classify", {"strategy": "probe-then-full"}),
    "more examples": ("classify", {"augment": "dropout,masked"}),
    "replay": ("classify", {"remembers": True, "overrides": {"replay_every": 1}}),
    "weights": ("classify", {"balance": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_ends_as_one_that_was_not(
    case: str, run: Callable[..., FinetuneResult]
) -> None:
    task, options = CASES[case]
    whole = run("whole", task, **options)
    with pytest.raises(Killed):
        run("stopped", task, callbacks=fails_at(3), **options)
    stopped = whole.path.parent / "stopped"
    assert not json.loads((stopped / "run.json").read_text())["finished"]
    assert not (stopped / "model.safetensors").exists()
    assert not (stopped / "adapter_model.safetensors").exists()
    notes: list[str] = []
    callback = lambda kind, metrics: notes.append(metrics.get("note", ""))  # noqa: E731
    again = run("stopped", task, resume=True, callback=callback, **options)
    assert "Resuming from step 2." in notes
    assert sums(again.path) == sums(whole.path) != {}
    assert again.metrics == whole.metrics
    assert not (again.path / "checkpoints").exists()


def test_twice_stopped(run: Callable[..., FinetuneResult]) -> None:
    whole = run("whole", "classify")
    for step in (3, 5):
        with pytest.raises(Killed):
            run("stopped", "classify", callbacks=fails_at(step), resume=step == 5)
    again = run("stopped", "classify", resume=True)
    assert sums(again.path) == sums(whole.path)


def test_without_a_checkpoint_it_begins_again(
    run: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    notes: list[str] = []
    callback = lambda kind, metrics: notes.append(metrics.get("note", ""))  # noqa: E731
    again = run("stopped", "classify", resume=True, callback=callback)
    assert any(note.startswith("There is no checkpoint yet") for note in notes)
    assert sums(again.path) == sums(run("whole", "classify").path)


# What a command may have that another has not, and both values in the sentence that names it.
OTHERS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "learning_rate": (
        {"overrides": {"learning_rate": 2e-2}},
        "training.optimizer.learning_rate",
        "0.01",
        "0.02",
    ),
    "strategy": ({"strategy": "lora"}, "strategy", "'full'", "'lora'"),
    "balance": ({"balance": True}, "balance", "False", "True"),
    "augment": ({"augment": "swap"}, "augment", "''", "'swap'"),
    "seed": ({"seed": 1}, "training.seed", "0", "1"),
    "replay": ({"remembers": True}, "data.replay", "none", r".*dev\.txt \(SHA-256 \w{12}…\)"),
    "dev": ({"dev": None}, "data.dev", r".*dev\.tsv \(SHA-256 \w{12}…\)", "none"),
    "head": ({"overrides": {"head.layers": 2}}, "head.layers", "none", "2"),
    "columns": ({"columns": {"text": "text"}}, "columns.text", "none", "'text'"),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("way", ["added", "left out"])
def test_another_command_is_refused(
    way: str, case: str, run: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    options, what, plain, other = OTHERS[case]
    added = way == "added"
    with pytest.raises(Killed):
        run("stopped", "classify", callbacks=fails_at(3), **({} if added else options))
    begun = (tmp_path / "stopped/run.json").read_text()
    before, now = (plain, other) if added else (other, plain)
    with pytest.raises(UsageError, match=f"{what} {before}, not {now};"):
        run("stopped", "classify", resume=True, **(options if added else {}))
    assert (tmp_path / "stopped/run.json").read_text() == begun


def test_other_examples_are_refused(run: Callable[..., FinetuneResult], tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run("stopped", "classify", callbacks=fails_at(3))
    train, dev = coloured(tmp_path)
    with train.open("a", encoding="utf-8") as file:
        file.write("one more red dog\tx\n")
    with pytest.raises(UsageError, match=rf"data\.train {train} \(SHA-256 .*, not {train} "):
        model = json.loads((tmp_path / "stopped" / "run.json").read_text())["job"]["model"]
        files = {"train": train, "dev": dev, "out": tmp_path / "stopped", "limit": 16}
        finetune(model, task="classify", overrides=SIX | KEPT, resume=True, **files)


def test_the_first_command_is_kept(
    run: Callable[..., FinetuneResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["firth", "finetune"])
    with pytest.raises(Killed):
        run("stopped", "classify", callbacks=fails_at(3))
    monkeypatch.setattr(sys, "argv", ["firth", "finetune", "--resume"])
    run("stopped", "classify", resume=True)
    values = json.loads((tmp_path / "stopped/run.json").read_text())
    assert values["finished"]
    assert values["command"] == ["firth", "finetune"]


def test_a_finished_run_is_not_resumed(run: Callable[..., FinetuneResult]) -> None:
    run("whole", "classify")
    with pytest.raises(UsageError, match="is finished"):
        run("whole", "classify", resume=True)
    with pytest.raises(UsageError, match="already holds a finished run"):
        run("whole", "classify")


@pytest.mark.slow
def test_killed_for_good(forgetful: dict[str, Path], tmp_path: Path) -> None:
    """A process that gets no chance to tidy up; resumed by one that would use more threads.

    All are processes of their own: the promise holds for the same machine and thread count, and
    the latter is kept in the checkpoint.
    """
    train, dev = coloured(tmp_path)

    def command(out: str, *more: str) -> list[str]:
        given = SIX | {"steps": 80, "checkpoint_every": 1, "validate_every": 0.25}
        pairs = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        files = ["--train", str(train), "--dev", str(dev), "--out", str(tmp_path / out)]
        model = str(forgetful["encoder"])
        return ["finetune", model, "--task", "classify", *files, *pairs, *more]

    def firth(*arguments: str, threads: int = 1) -> subprocess.Popen[bytes]:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        return subprocess.Popen([sys.executable, "-m", "firth", *arguments], env=environment)

    process = firth(*command("stopped"))
    stopped = tmp_path / "stopped"
    while process.poll() is None and not list(stopped.glob("checkpoints/step-[3-9]")):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert not json.loads((stopped / "run.json").read_text())["finished"]
    assert not (stopped / "config.json").exists()
    assert firth(*command("stopped", "--resume"), threads=2).wait(300) == 0
    assert firth(*command("whole")).wait(300) == 0
    assert sums(stopped) == sums(tmp_path / "whole")
