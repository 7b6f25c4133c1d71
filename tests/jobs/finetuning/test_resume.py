"""A run that was stopped and resumed ends with the bits of an uninterrupted run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.jobs.finetuning import FinetuneResult, finetune
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.loop import TrainingLoop
from firth.training.run_directory import read_run
from firth.utils.errors import UsageError
from tests.conftest import Result
from tests.jobs.finetuning.conftest import save
from tests.jobs.finetuning.toys import TOYS, coloured, sums
from tests.nightly import mostly_nightly
from tests.training.conftest import Killed, kill_at, notes
from tests.training.killed_runs import run_in_children

# Six steps of four examples, sixteen in all: an epoch and a half.
SIX = {"steps": 6, "batch_size": 4, "max_length": 32, "precision": "fp32", "learning_rate": 1e-2}
KEPT = {"checkpoint_every": 2, "validate_every": 0.3}
Run = Callable[..., FinetuneResult]


@pytest.fixture(scope="module")
def with_dropout(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Networks with dropout, whose random numbers must be the same after a resume."""
    folder = tmp_path_factory.mktemp("dropout")
    presets = {"encoder": "encoder-tiny", "encoder-decoder": "seq2seq-tiny"}
    return {
        kind: save(name, tokenizer, folder / kind, dropout=0.1) for kind, name in presets.items()
    }


@pytest.fixture
def run(with_dropout: dict[str, Path], stories: Path, tmp_path: Path) -> Run:
    def tune(name: str, task: str, **options: Any) -> FinetuneResult:
        train, dev = TOYS[task](tmp_path)
        model = with_dropout["encoder-decoder" if task == "seq2seq" else "encoder"]
        overrides = SIX | KEPT | options.pop("overrides", {})
        files = {"train": train, "dev": options.pop("dev", dev), "out": tmp_path / name}
        if options.get("replay"):
            options["replay"] = stories / "dev.txt"
        return finetune(model, task=task, overrides=overrides, **files, **{"limit": 16, **options})

    return tune


def killed(run: Run, step: int = 3, **options: Any) -> None:
    """Start a run that is killed before a step."""
    with pytest.raises(Killed):
        run("stopped", options.pop("task", "classify"), callbacks=kill_at(step), **options)


CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "tag": {"task": "tag"},
    "span": {"task": "span"},
    "seq2seq": {"task": "seq2seq"},
    "lora": {"strategy": "lora"},
    "gradual": {"strategy": "gradual", "limit": 8},  # two steps per epoch
    "mix": {"strategy": "probe:layer=mix"},
    "probe-then-full": {"strategy": "probe-then-full"},
    "augment": {"augment": "dropout,masked"},
    "replay": {"replay": True, "overrides": {"replay_every": 1}},
    "balance": {"balance": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", mostly_nightly(CASES, always=("full", "lora", "replay")))
def test_resumed_equals_uninterrupted(case: str, run: Run, tmp_path: Path) -> None:
    options = {"task": "classify", **CASES[case]}
    whole, stopped = run("whole", **options), tmp_path / "stopped"
    killed(run, **options)
    assert not read_run(stopped)["finished"]
    assert not list(stopped.glob("*model.safetensors"))
    if case == "full":  # killed a second time, after the resume
        killed(run, step=5, resume=True, **options)
    again = run("stopped", resume=True, **options)
    assert "Resuming from step 2." in notes(stopped)
    assert sums(again.path) == sums(whole.path) != {}
    assert again.metrics == whole.metrics
    assert not (again.path / "checkpoints").exists()


def test_without_a_checkpoint_a_resumed_run_starts_anew(run: Run) -> None:
    again = run("stopped", "classify", resume=True)
    assert any("no checkpoint yet" in note for note in notes(again.path))
    assert sums(again.path) == sums(run("whole", "classify").path)


# Options that one of two commands has, and the field and its values in the error.
OTHERS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "setting": (
        {"overrides": {"learning_rate": 2e-2}},
        "training.optimizer.learning_rate",
        "0.01",
        "0.02",
    ),
    "strategy": ({"strategy": "lora"}, "strategy", "'full'", "'lora'"),
    "replay": ({"replay": True}, "data.replay", "none", r".*dev\.txt \(SHA-256 \w{12}…\)"),
    "dev": ({"dev": None}, "data.dev", r".*dev\.tsv \(SHA-256 \w{12}…\)", "none"),
    "head": ({"overrides": {"head.layers": 2}}, "head.layers", "none", "2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS)
def test_another_command_is_not_resumed(case: str, run: Run, tmp_path: Path) -> None:
    """Neither with an option that the first command did not have, nor without one it had."""
    options, what, plain, other = OTHERS[case]
    killed(run)
    begun = (tmp_path / "stopped/run.json").read_text()
    with pytest.raises(UsageError, match=f"{what} {plain}, not {other};"):
        run("stopped", "classify", resume=True, **options)
    assert (tmp_path / "stopped/run.json").read_text() == begun
    (tmp_path / "stopped").rename(tmp_path / "other")
    killed(run, **options)
    with pytest.raises(UsageError, match=f"{what} {other}, not {plain};"):
        run("stopped", "classify", resume=True)


def test_other_examples_are_not_resumed(run: Run, tmp_path: Path) -> None:
    killed(run)
    train, dev = coloured(tmp_path)
    with train.open("a", encoding="utf-8") as file:
        file.write("one more red dog\tx\n")
    model = read_run(tmp_path / "stopped")["job"]["model"]
    files = {"train": train, "dev": dev, "out": tmp_path / "stopped", "limit": 16}
    with pytest.raises(UsageError, match=rf"data\.train {train} \(SHA-256 .*, not {train} "):
        finetune(model, task="classify", overrides=SIX | KEPT, resume=True, **files)


def test_the_command_line_resumes_and_keeps_the_first_command(
    with_dropout: dict[str, Path],
    firth_here: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train, dev = coloured(tmp_path)
    words = ["finetune", with_dropout["encoder"], "--task", "classify", "--out", "run"]
    words += ["--train", train, "--dev", dev]
    words += [w for key, value in (SIX | KEPT).items() for w in ("--set", f"{key}={value}")]
    monkeypatch.setattr(sys, "argv", ["firth", "finetune"])
    init = TrainingLoop.__init__

    def killed_loop(self: TrainingLoop, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.gradients.before_micro_batch = kill_at(3).before_micro_batch

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "__init__", killed_loop)
        assert firth_here(*words).returncode == 1
    monkeypatch.setattr(sys, "argv", ["firth", "finetune", "--resume"])
    done = firth_here(*words, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert "Resuming from step 2." in done.stderr
    values = json.loads((tmp_path / "run/run.json").read_text())
    assert values["finished"]
    assert values["command"] == ["firth", "finetune"]
    refused = firth_here(*words, "--resume")
    assert refused.returncode == 2
    assert "is finished" in refused.error
    assert "already holds a finished run" in firth_here(*words).error


@pytest.mark.slow
def test_a_killed_process_is_resumed_with_its_number_of_threads(
    with_dropout: dict[str, Path], tmp_path: Path
) -> None:
    """Resumed by a process that would use two threads: the checkpoint says one."""
    train, dev = coloured(tmp_path)
    common: dict[str, Any] = {"model": with_dropout["encoder"], "task": "classify"}
    common |= {"train": train, "dev": dev, "overrides": SIX | KEPT}
    whole, stopped = common | {"out": tmp_path / "whole"}, common | {"out": tmp_path / "stopped"}
    resumed = stopped | {"resume": True, "threads": 2}
    run_in_children("finetune", [whole, stopped | {"kill_at": 3}, resumed])
    assert sums(tmp_path / "stopped") == sums(tmp_path / "whole")
