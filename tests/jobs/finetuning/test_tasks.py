"""Every task with every architecture that supports it, from file to metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult
from firth.model import load
from firth.tasks.registry import TASKS
from firth.utils.errors import MismatchError
from tests.nightly import mostly_nightly

Tune = Callable[..., FinetuneResult]
FOLDERS = {
    "classify": "sentiment",
    "pair": "entailment",
    "tag": "entities",
    "span": "questions",
    "seq2seq": "rewrite",
    "lm": "",
}
COMBINATIONS = [
    (architecture, task)
    for task in FOLDERS
    for architecture in ("encoder", "decoder", "encoder-decoder")
    if architecture in TASKS[task].architectures
]


OFTEN = [("encoder", task) for task in ("classify", "tag", "span")]
OFTEN += [("decoder", "lm"), ("encoder-decoder", "seq2seq")]


@pytest.mark.parametrize(("architecture", "task"), mostly_nightly(COMBINATIONS, always=OFTEN))
def test_a_loaded_run_has_the_same_metrics(
    architecture: str, task: str, tune: Tune, stories: Path
) -> None:
    tuned = tune(architecture, task, FOLDERS[task])
    again = load(tuned.path)
    assert again.task == tuned.model.task
    end = {"tag": "conll", "span": "json", "lm": "txt"}.get(task, "tsv")
    data = stories / FOLDERS[task] / f"dev.{end}" if task != "lm" else stories / "test.txt"
    found = evaluate(again, data=data)
    assert found.n == tuned.examples[1]
    for name, metric in tuned.metrics.items():
        assert found.metrics[name].value == pytest.approx(metric.value, abs=1e-6), name
    run = json.loads((tuned.path / "run.json").read_text())
    assert run["finished"]
    assert run["results"]["metrics"].keys() == tuned.metrics.keys()
    assert "fine-tuned" in (tuned.path / "README.md").read_text()
    assert not (tuned.path / "best.safetensors").exists()


@pytest.mark.parametrize("task", ["seq2seq", "lm"])
def test_an_encoder_cannot_generate(task: str, tune: Tune) -> None:
    with pytest.raises(MismatchError, match="decoder"):
        tune("encoder", task, "rewrite")
