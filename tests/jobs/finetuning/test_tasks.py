"""Every task with every architecture that supports it, from file to metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult
from firth.jobs.prediction import predict
from firth.model import load
from firth.tasks.registry import TASKS
from firth.utils.errors import MismatchError

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


@pytest.mark.parametrize(("architecture", "task"), COMBINATIONS)
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


def test_numbers_choices_and_many_labels(tune: Tune, tmp_path: Path) -> None:
    """Tasks without files in the stories."""
    rows = [("it was good", "it was fine", 1.5), ("the dog ran", "a cat sat", 0.5)] * 8
    numbers = tmp_path / "numbers.tsv"
    lines = [f"{a}\t{b}\t{c}" for a, b, c in rows]
    numbers.write_text("text_a\ttext_b\tlabel\n" + "\n".join(lines), encoding="utf-8")
    tuned = tune("encoder", "regress", "", train=numbers, dev=numbers, out=tmp_path / "a")
    assert set(tuned.metrics) == {"pearson", "spearman", "rmse"}
    answers = predict(tuned.path, data=numbers).answers
    assert all(np.isfinite(answer["number"]) for answer in answers)

    choices = tmp_path / "choices.jsonl"
    row = {"text": "the dog", "choices": ["barked", "meowed loudly", "sang"], "label": 0}
    choices.write_text("\n".join([json.dumps(row)] * 8), encoding="utf-8")
    tuned = tune("decoder", "choice", "", train=choices, dev=choices, out=tmp_path / "b")
    answers = predict(tuned.path, data=choices).answers
    assert all(abs(sum(answer["scores"]) - 1) < 1e-6 for answer in answers)

    many = tmp_path / "many.jsonl"
    rows = [{"text": "a red ball", "label": ["red", "ball"]}, {"text": "a dog", "label": []}] * 6
    many.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    tuned = tune("encoder", "classify", "", train=many, dev=many, out=tmp_path / "c")
    assert tuned.model.task is not None
    assert tuned.model.task.label_type == "many"
    assert set(tuned.metrics) == {"exact", "macro_f1", "micro_f1"}
    assert load(tuned.path).config.label_type == "many"
