"""The verbs as people call them: what is printed, what is written, what the JSON looks like."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from firth.cli.app import app
from firth.tasks.registry import TASKS
from tests.jobs.finetuning.toys import TOYS, WORDS, coloured, table

SETTINGS = (
    "steps=40 learning_rate=1e-2 batch_size=16 max_length=32 precision=fp32 validate_every=1.0"
).split()
SET = [word for setting in SETTINGS for word in ("--set", setting)]


def firth(*arguments: str | Path, fails: bool = False) -> Result:
    """What `firth …` says, without a process of its own."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert fails or done.exit_code == 0, done.output
    assert "Traceback" not in done.output
    return done


def json_of(*arguments: str | Path) -> Any:
    done = firth(*arguments, "--json")
    assert len(done.stdout.splitlines()) == 1
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """What to learn from and what to be asked, for every task."""
    folder = tmp_path_factory.mktemp("data")
    found = {name: make(folder) for name, make in TOYS.items()}
    pairs = [("the dog", "the dog", "same"), ("the dog", "a river", "other")] * 8
    found["pair"] = (table(folder / "pairs.tsv", "text_a text_b label", pairs),) * 2
    numbers = [(f"{' '.join(WORDS[: n + 1])}", n) for n in (0, 1, 2, 3)] * 4
    found["regress"] = (table(folder / "numbers.tsv", "text label", numbers),) * 2
    row = {"text": "the dog", "choices": ["barked", "sang a song"], "label": 0}
    (folder / "choices.jsonl").write_text((json.dumps(row) + "\n") * 8, encoding="utf-8")
    found["choice"] = (folder / "choices.jsonl",) * 2
    (folder / "text.txt").write_text("The dog ran.\n\nThe river rose.\n", encoding="utf-8")
    found["lm"] = (folder / "text.txt",) * 2
    return found


@pytest.fixture(scope="module")
def run_of(
    models: dict[str, Path],
    data: dict[str, tuple[Path, Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """A run of each task, made when it is first asked for."""
    folder, architectures = tmp_path_factory.mktemp("runs"), {"seq2seq": "encoder-decoder"}

    def make(task: str) -> Path:
        if not (folder / task).exists():
            train, dev = data[task]
            kind = architectures.get(task, "decoder" if task == "lm" else "encoder")
            files = ["--train", train, "--dev", dev, "--out", folder / task]
            firth("finetune", models[kind], "--task", task, *files, *SET)
        return folder / task

    return make


def test_finetune(models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = coloured(tmp_path)
    files = ["--train", train, "--dev", dev]
    words = ["finetune", models["encoder"], "--task", "classify", *files, *SET]
    done = firth(*words, "--out", tmp_path / "a")
    assert "│ accuracy │ 1.0000 │" in done.stdout
    assert "Trained on 64 examples; evaluated on 32 others." in " ".join(done.stdout.split())
    assert "(100.00%, full)" in " ".join(done.stdout.split())
    *_, last = validations = done.stderr.splitlines()
    assert all(re.match(r" *\d+% after \d\.\d min  step \d+  valid", line) for line in validations)
    assert last.startswith("100% after")
    assert "accuracy 1.000" in last
    found = json_of(*words, "--out", tmp_path / "b", "--strategy", "lora")
    assert found["task"] == "classify"
    assert found["strategy"] == "lora"
    assert (found["train"], found["n"]) == (64, 32)
    assert found["trainable_fraction"] == pytest.approx(
        found["trainable_parameters"] / found["parameters"]
    )
    assert found["metrics"]["accuracy"].keys() == {"value", "low", "high"}
    assert found["out"] == str(tmp_path / "b")


def test_a_validation_is_announced(tune: Callable[..., Any]) -> None:
    """A terminal says what is going on while nothing is learned."""
    kinds: list[str] = []
    tune("encoder", "classify", "sentiment", callback=lambda kind, metrics: kinds.append(kind))
    assert kinds.count("validation") == 2
    for place, kind in enumerate(kinds):
        assert (kind == "validation") == (place > 0 and kinds[place - 1] == "validating")


def test_notes_go_to_stderr(models: dict[str, Path], tmp_path: Path) -> None:
    train, _ = coloured(tmp_path)
    files = ["--train", train, "--out", tmp_path / "run", "--json"]
    done = firth("finetune", models["encoder"], "--task", "classify", *files, *SET)
    note = done.stderr.splitlines()[0]  # one line, however long
    assert note.startswith("There is no dev file: 6 of the 64 examples are held out")
    assert note.endswith(".")
    assert json.loads(done.stdout)["notes"]


KEYS: dict[str, set[str]] = {
    "classify": {"label", "score", "scores"},
    "pair": {"label", "score", "scores"},
    "regress": {"number"},
    "choice": {"choice", "text", "scores"},
    "tag": {"words", "tags", "entities"},
    "span": {"answer", "begin", "end", "score", "id"},
    "seq2seq": {"text"},
    "lm": {"loss", "tokens", "perplexity"},
}
# What another program reads of an example: the answer, how sure it is, what it is about.
SEEN: dict[str, str] = {
    "classify": "x\t0.9",
    "pair": "\tthe dog\t",
    "regress": "\triver",
    "choice": "\tthe dog\tbarked\tsang a song",
    "tag": "B-PER ",
    "span": "\twho\t",
    "seq2seq": "\tthe river\n",
    "lm": "\tThe dog ran.",
}


@pytest.mark.parametrize("task", TASKS)
def test_predict_and_evaluate(
    task: str, run_of: Callable[[str], Path], data: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    run, (_, dev) = run_of(task), data[task]
    shown = firth("predict", run, "--data", dev).stdout
    assert SEEN[task] in shown
    found = json_of("predict", run, "--data", dev)
    assert found["task"] == task
    assert all(answer.keys() == KEYS[task] for answer in found["predictions"])
    out = tmp_path / "answers.jsonl"
    done = firth("predict", run, "--data", dev, "--out", out)
    assert f"Wrote {len(found['predictions'])} rows to" in " ".join(done.stdout.split())
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert lines == found["predictions"]
    worth = json_of("evaluate", run, "--data", dev)
    assert worth["task"] == task
    assert worth["n"] == len(lines)
    for metric in worth["metrics"].values():
        assert metric.keys() == {"value", "low", "high"}
        assert metric["low"] <= metric["value"] <= metric["high"]
    assert "95 % interval" in firth("evaluate", run, "--data", dev).stdout


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("txt", "the red dog\nthe green dog\n"),
        ("tsv", "text\nthe red dog\nthe green dog\n"),
        ("jsonl", '{"text": "the red dog"}\n{"text": "the green dog"}\n'),
        ("csv", 'text\n"the red dog"\n"the green dog"\n'),
    ],
)
def test_standard_input(
    format: str, text: str, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run, given = run_of("classify"), tmp_path / "given"
    given.write_text(text, encoding="utf-8")
    before = os.dup(0)
    with given.open("rb") as file:
        os.dup2(file.fileno(), 0)
        found = json_of("predict", run, "--data", "-", "--format", format)
    os.dup2(before, 0)
    os.close(before)
    assert [answer["label"] for answer in found["predictions"]] == ["x", "y"]


def test_columns_of_other_names(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    rows = [("the red dog", "x"), ("the green dog", "y")]
    file = table(tmp_path / "named.tsv", "opinion verdict", rows)
    names = ["--column", "text=opinion", "--column", "label=verdict"]
    found = json_of("evaluate", run_of("classify"), "--data", file, *names)
    assert found["metrics"]["accuracy"]["value"] == 1.0


def test_several_models_at_once(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    _, dev = coloured(tmp_path)
    run = run_of("classify")
    one, two = (json_of("predict", *runs, "--data", dev) for runs in ([run], [run, run]))
    assert two["predictions"][0]["score"] == pytest.approx(one["predictions"][0]["score"])


def test_every_answer_is_shown(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    _, dev = coloured(tmp_path)
    assert len(firth("predict", run_of("classify"), "--data", dev).stdout.splitlines()) == 32
    nothing = table(tmp_path / "nothing.tsv", "text", [])
    done = firth("predict", run_of("classify"), "--data", nothing)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "There are no examples.\n")


def test_nothing_is_half_written(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    _, dev = coloured(tmp_path)
    out = dev / "answers.jsonl"  # a file is no folder
    done = firth("predict", run_of("classify"), "--data", dev, "--out", out, fails=True)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"firth: {out} cannot be written")


def test_tables_of_runs(models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = coloured(tmp_path)
    files = ["--train", train, "--dev", dev]
    words = ["finetune", models["encoder"], "--task", "classify", *files, *SET, "--set", "steps=2"]
    shown = firth(*words, "--seeds", "2", "--out", tmp_path / "seeds").stdout
    assert "seed-0" in shown
    assert "│ accuracy │" in shown
    assert "± " in shown
    assert "RAM" not in shown, "the runs of one process share its memory"
    told = re.search(r"The best run is (seed-\d); its model is in (\S+),", shown.replace("\n", ""))
    assert told is not None
    assert told[2] == str(tmp_path / "seeds" / told[1])
    assert firth("evaluate", told[2], "--data", dev).exit_code == 0
    done = firth(*words, "--strategy", "full lora bitfit", "--out", tmp_path / "strategies")
    assert "lora " in done.stdout
    assert "bitfit: This network has no biases" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = json_of(*words, "--strategy", "full lora", "--out", tmp_path / "json")
    assert [run["name"] for run in found["runs"]] == ["full", "lora"]
    assert found["best"] in ("full", "lora")


def test_tasks_are_listed() -> None:
    shown = firth("tasks").stdout
    assert all(f"  {name} " in shown for name in TASKS)
    rows = json_of("tasks")["tasks"]
    assert [row["task"] for row in rows if row["trainable"]] == list(TASKS)
    measured = {row["task"] for row in rows if not row["trainable"]}
    assert measured == {"last-word", "minimal-pairs"}
    assert all(bool(row["recipes"]) == row["trainable"] for row in rows)
    assert all(row["files"] and row["metric"] for row in rows)
    assert rows[0]["recipes"] == ["sentiment", "topic", "spam"]
