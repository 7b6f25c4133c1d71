"""`firth finetune`, `predict`, `evaluate` and `tasks`: what they print and write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.tasks.registry import TASKS
from tests.conftest import Result, in_process
from tests.jobs.finetuning.toys import Files, coloured, table

RunOf = Callable[[str], Path]
SETTINGS = (
    "steps=40 learning_rate=1e-2 batch_size=16 max_length=32 precision=fp32 validate_every=1.0"
).split()
SET = [word for setting in SETTINGS for word in ("--set", setting)]


def firth(*arguments: str | Path, **options: str) -> Result:
    done = in_process(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done


def json_of(*arguments: str | Path, **options: str) -> Any:
    done = firth(*arguments, "--json", **options)
    assert len(done.stdout.splitlines()) == 1
    return done.json


def test_finetune(models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = coloured(tmp_path)
    words = ["finetune", models["encoder"], "--task", "classify", "--train", train, *SET]
    done = firth(*words, "--dev", dev, "--out", tmp_path / "a")
    shown = " ".join(done.stdout.split())
    assert re.search(r"│ accuracy │ \d\.\d{4} │", shown)
    for fact in ("64 examples", "32 of the dev set", "(100.00%, full)"):
        assert fact in shown
    *_, last = validations = done.stderr.splitlines()
    assert all(re.match(r" *\d+% after \d\.\d min  step \d+  valid", line) for line in validations)
    assert last.startswith("100% after")
    assert "accuracy" in last

    short = ["--set", "steps=4"]
    done = firth(*words, *short, "--out", tmp_path / "b", "--strategy", "lora", "--json")
    note, found = done.stderr.splitlines()[0], done.json
    assert "64 examples are too few to hold out 50" in note
    assert found["notes"][0] == note
    assert (found["task"], found["strategy"]) == ("classify", "lora")
    assert (found["train"], found["n"], found["evaluated_on"]) == (64, 64, "cross-validation")
    fraction = found["trainable_parameters"] / found["parameters"]
    assert found["trainable_fraction"] == pytest.approx(fraction)
    assert found["metrics"]["accuracy"].keys() == {"value", "low", "high"}
    assert found["out"] == str(tmp_path / "b")


# The keys of a prediction in JSON, and a part of its line of text.
PREDICTIONS: dict[str, tuple[str, str]] = {
    "classify": ("label score scores", "x\t0."),
    "pair": ("label score scores", "\tthe dog\t"),
    "regress": ("number", "\triver"),
    "choice": ("choice text scores", "\tthe dog\tbarked\tsang a song"),
    "tag": ("words tags entities", "B-PER "),
    "span": ("answer begin end score id", "\twho\t"),
    "seq2seq": ("text", "\tthe river\n"),
    "lm": ("loss tokens perplexity", "\tThe dog ran."),
}


@pytest.mark.parametrize("task", TASKS)
def test_predict_and_evaluate(
    task: str, run_of: RunOf, task_files: dict[str, Files], tmp_path: Path
) -> None:
    run, (_, dev), (keys, line) = run_of(task), task_files[task], PREDICTIONS[task]
    assert line in firth("predict", run, "--data", dev).stdout
    found = json_of("predict", run, "--data", dev)
    assert found["task"] == task
    assert all(answer.keys() == set(keys.split()) for answer in found["predictions"])
    out = tmp_path / "answers.jsonl"
    done = firth("predict", run, "--data", dev, "--out", out)
    assert f"{len(found['predictions'])} rows to" in " ".join(done.stdout.split())
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert lines == found["predictions"]
    result = json_of("evaluate", run, "--data", dev)
    assert (result["task"], result["n"]) == (task, len(lines))
    for metric in result["metrics"].values():
        assert {"value", "low", "high"} <= metric.keys()
        assert ("reason" in metric) == (metric["low"] is None)
        if metric["low"] is not None:
            assert metric["low"] <= metric["value"] <= metric["high"]
            assert metric["low"] < metric["high"]
    assert "95 % interval" in firth("evaluate", run, "--data", dev).stdout


def test_columns_with_other_names(run_of: RunOf, tmp_path: Path) -> None:
    rows = [("the red dog", "x"), ("the green dog", "y")]
    file = table(tmp_path / "named.tsv", "opinion verdict", rows)
    names = ["--column", "text=opinion", "--column", "label=verdict"]
    assert json_of("evaluate", run_of("classify"), "--data", file, *names)["n"] == 2


def test_predictions_of_several_models_and_of_no_examples(run_of: RunOf, tmp_path: Path) -> None:
    _, dev = coloured(tmp_path)
    run = run_of("classify")
    one, two = (json_of("predict", *runs, "--data", dev) for runs in ([run], [run, run]))
    assert two["predictions"][0]["score"] == pytest.approx(one["predictions"][0]["score"])
    assert len(firth("predict", run, "--data", dev).stdout.splitlines()) == 32
    nothing = table(tmp_path / "nothing.tsv", "text", [])
    done = firth("predict", run, "--data", nothing)
    assert done.stdout == ""
    assert "no examples" in done.stderr
    out = dev / "answers.jsonl"  # a file is no folder
    refused = in_process("predict", run, "--data", dev, "--out", out)
    assert refused.returncode == 1
    assert str(out) in refused.error


def test_the_format_of_a_training_file(models: dict[str, Path], tmp_path: Path) -> None:
    file = table(tmp_path / "train.dat", "remark\tgrade", [("fine", "a")])
    words = ["finetune", models["encoder"], "--task", "classify", "--train", file]
    words += ["--out", tmp_path / "run"]
    for format, code, fact in ((None, 2, "--format"), ("odt", 2, "odt"), ("tsv", 1, "'remark'")):
        refused = in_process(*words, *(["--format", format] if format else []))
        assert refused.returncode == code
        assert fact in refused.error


def test_tables_of_several_runs(models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = coloured(tmp_path)
    files = ["--train", train, "--dev", dev]
    words = ["finetune", models["encoder"], "--task", "classify", *files, *SET, "--set", "steps=2"]
    shown = firth(*words, "--seeds", "2", "--out", tmp_path / "seeds").stdout
    for fact in ("seed-0", "│ accuracy │", "± "):
        assert fact in shown
    assert "RAM" not in shown, "the runs of one process share its memory"
    best = re.search(r"best run is (seed-\d); its model is in (\S+),", shown.replace("\n", ""))
    assert best is not None
    assert best[2] == str(tmp_path / "seeds" / best[1])
    assert json_of("evaluate", best[2], "--data", dev)["n"] == 32
    done = firth(*words, "--strategy", "full lora bitfit", "--out", tmp_path / "strategies")
    assert "lora " in done.stdout
    assert "bitfit: This network has no biases" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if line.startswith("  ")) <= 80
    found = json_of(*words, "--strategy", "full lora", "--out", tmp_path / "json")
    assert [run["name"] for run in found["runs"]] == ["full", "lora"]
    assert found["best"] in ("full", "lora")


def test_tasks_are_listed() -> None:
    shown = firth("tasks").stdout
    assert all(f"  {name} " in shown for name in TASKS)
    rows = json_of("tasks")["tasks"]
    assert [row["task"] for row in rows if row["trainable"]] == list(TASKS)
    others = {row["task"] for row in rows if not row["trainable"]}
    heads = {"next-sentence", "sentence-order", "replaced"}
    assert others == {"last-word", "minimal-pairs", "similarity", "analogies", *heads}
    assert all(bool(row["recipes"]) == row["trainable"] for row in rows)
    assert all(row["files"] and row["metric"] for row in rows)
    assert rows[0]["recipes"][:3] == ["sentiment", "topic", "spam"]
    assert rows[0]["models"][:2] == ["bow", "cnn"]
