"""Examples and models in memory: lists of rows, tables of other libraries, `Model` objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import firth
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import FirthError, InputError, UsageError

PAIRS = [("red dog", "x"), ("green dog", "y")] * 4
ROWS = [{"text": text, "label": label} for text, label in PAIRS]
COLUMNS = {"text": [text for text, _ in PAIRS], "label": [label for _, label in PAIRS]}
OVERRIDES = {"steps": 2, "precision": "fp32", "batch_size": "2"}


def class_labels() -> Any:
    """Labels as numbers with names, as on the hub."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict(COLUMNS | {"label": [0, 1] * 4})
    return data.cast_column("label", datasets.ClassLabel(names=["x", "y"]))


TABLES: dict[str, Callable[[], Any]] = {
    "tuples": lambda: PAIRS,
    "dicts": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
    "columns": lambda: COLUMNS,
    "pandas": lambda: pytest.importorskip("pandas").DataFrame(ROWS),
    "pandas categories": lambda: (
        pytest.importorskip("pandas").DataFrame(ROWS).astype({"label": "category"})
    ),
    "pyarrow": lambda: pa.Table.from_pylist(ROWS),
    "datasets": class_labels,
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("kind", TABLES)
def test_every_table_is_read_like_a_file(
    kind: str, file: Path, run_of: Callable[[str], Path], models: dict[str, Path], tmp_path: Path
) -> None:
    """In all functions of labelled examples; one kind is enough to train on."""
    model = firth.load(models["encoder"])
    tuned = firth.finetune(
        model, task="classify", train=TABLES[kind](), dev=file, out=tmp_path / "run",
        strategy="probe", overrides=OVERRIDES,
    )  # fmt: skip
    assert tuned.model.task is not None
    assert tuned.model.task.labels == ("x", "y")
    data = json.loads((tmp_path / "run/run.json").read_text())["data"]
    assert "memory" in data["train"]["path"]
    assert len(data["train"]["sha256"]) == 64
    expected = firth.evaluate(tuned.model, data=file)
    found = firth.evaluate(tuned.model, data=TABLES[kind]())
    assert (found.n, found.metrics) == (expected.n, expected.metrics)
    answers = firth.predict(tuned.model, data=file).answers
    assert firth.predict(tuned.model, data=TABLES[kind]()).answers == answers
    assert firth.predict(tuned.model, TABLES[kind]()).answers == answers


def test_two_rows_without_a_dev_set(models: dict[str, Path], tmp_path: Path) -> None:
    """The result, run.json and the model card say that metrics are those of the training data."""
    out = tmp_path / "run"
    rows = [("red dog", "x"), ("green dog", "y")]
    found = firth.finetune(
        models["encoder"], task="classify", train=rows, out=out, overrides=OVERRIDES
    )
    assert found.examples == (2, 2)
    note = next(note for note in found.notes if "training examples" in note)
    assert note in json.loads((out / "run.json").read_text())["results"]["notes"]
    assert note in (out / "README.md").read_text()
    assert note in (out / "metrics.jsonl").read_text()
    assert "on training examples" in repr(found)
    assert not any("dev loss" in note for note in found.notes)


def test_a_model_in_memory_is_copied(models: dict[str, Path], tmp_path: Path) -> None:
    """An adapter on changed weights is saved with them, and loads."""
    model = firth.load(models["encoder"])
    with torch.no_grad():
        model.network.get_parameter("tokens.weight").mul_(2)
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    options: dict[str, Any] = {"task": "classify", "train": ROWS, "overrides": OVERRIDES}
    tuned = firth.finetune(model, strategy="lora", out=tmp_path / "run", **options)
    after = model.network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    opened = firth.load(tmp_path / "run")
    one, other = (firth.predict(each, "red dog").answers[0] for each in (opened, tuned.model))
    assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)
    parent = json.loads((tmp_path / "run/run.json").read_text())["parents"]["model"]
    assert parent["path"] != str(models["encoder"])


def test_texts(run_of: Callable[[str], Path]) -> None:
    """A string is one text; a Series or an array are lists of texts."""
    model = firth.load(run_of("classify"))
    texts = ["red dog", "green dog"]
    answers = firth.predict(model, texts).answers
    (one,) = firth.predict(model, texts[0]).answers
    assert one["label"] == answers[0]["label"]
    for several in (pa.array(texts), tuple(texts), iter(texts)):
        assert firth.predict(model, several).answers == answers
    assert firth.predict(model, data=texts).answers == answers
    series = pytest.importorskip("pandas").Series(texts)
    assert firth.predict(model, series).answers == answers


def test_missing_rows_are_skipped(models: dict[str, Path], tmp_path: Path) -> None:
    rows = [*PAIRS, None, float("nan")]
    options: dict[str, Any] = {"task": "classify", "strategy": "probe", "overrides": OVERRIDES}
    tuned = firth.finetune(
        models["encoder"], train=rows, dev=[None, *PAIRS], out=tmp_path / "run", **options
    )
    assert tuned.examples == (8, 8)
    assert any("`train` row 9" in note for note in tuned.notes)
    assert any("`dev` row 1" in note for note in tuned.notes)
    assert any("was fine-tuned on" in note for note in firth.evaluate(tuned.model, data=rows).notes)


@pytest.mark.parametrize(
    ("trained", "spellings"),
    [
        ([True, False], [["true", "false"], ["True", "False"], ["TRUE", "FALSE"]]),
        (["True", "False"], [[True, False], ["true", "false"]]),
        ([1.0, 0.0], [[1, 0], ["1.0", "0.0"], ["1", "0"]]),
        ([1, 0], [[1.0, 0.0], ["1.0", "0.0"]]),
    ],
)
def test_labels_of_one_meaning(
    trained: list[Any], spellings: list[list[Any]], models: dict[str, Path], tmp_path: Path
) -> None:
    """Booleans and whole numbers are the labels they were in training, as pandas writes them."""

    def rows(labels: list[Any]) -> list[Any]:
        return [("red dog", labels[0]), ("green dog", labels[1])]

    options: dict[str, Any] = {"task": "classify", "strategy": "probe", "overrides": OVERRIDES}
    tuned = firth.finetune(
        models["encoder"], train=rows(trained), dev=rows(spellings[0]), out=tmp_path, **options
    )
    expected = firth.evaluate(tuned.model, data=rows(trained)).metrics
    for labels in spellings:
        assert firth.evaluate(tuned.model, data=rows(labels)).metrics == expected
    with pytest.raises(InputError, match=r"'2\.0' is not in the training data"):
        firth.evaluate(tuned.model, data=rows(["2.0", "1"]))


def test_one_dict_is_one_row(run_of: Callable[[str], Path]) -> None:
    for task, row in (
        ("span", {"question": "Who ran?", "context": "The dog ran home."}),
        ("pair", {"text_a": "A dog ran.", "text_b": "A cat sat."}),
    ):
        model = firth.load(run_of(task))
        assert model.predict(row) == model.predict([row])[0]
        assert firth.predict(model, row).answers == [model.predict(row)]
        columns = {name: [text] for name, text in row.items()}
        assert model.predict(columns) == [model.predict(row)]
    with pytest.raises(UsageError, match="tuples or dicts"):
        model.predict("A dog ran.")


WRONG: list[tuple[Any, type[FirthError], str]] = [
    (None, UsageError, "None"),
    (5, UsageError, "int"),
    (b"text", UsageError, "bytes"),
    (pa.array([1, 2]), InputError, "row 1"),
    ([("red dog", "x", "y")], InputError, r"row 1 .*\(text, label\)"),
    ([{"text": "red dog"}], InputError, "row 1 .*'label'"),
    ([{"opinion": "red dog", "label": "x"}], InputError, r"`columns=\{'text': 'NAME'\}`"),
    ({"text": "red dog", "label": "x"}, UsageError, "list of dicts"),
]


@pytest.mark.parametrize(("data", "error", "facts"), WRONG)
def test_wrong_data(
    data: Any, error: type[FirthError], facts: str, models: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(error, match=facts) as caught:
        firth.finetune(models["encoder"], task="classify", train=data, out=tmp_path / "run")
    assert "`train`" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_dictionary_of_splits(models: dict[str, Path], tmp_path: Path) -> None:
    splits = pytest.importorskip("datasets").DatasetDict({"train": class_labels()})
    with pytest.raises(UsageError, match="'train'"):
        firth.finetune(models["encoder"], task="classify", train=splits, out=tmp_path / "run")


def test_pretraining_on_texts_and_a_model(
    models: dict[str, Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """What is only in memory is written into the run directory; the same call resumes the run."""
    model = firth.load(models["encoder"])
    options: dict[str, Any] = {"steps": 2, "batch_tokens": 64, "max_length": 16}
    options |= {"objective": "masked", "overrides": {"precision": "fp32"}}
    texts: list[Any] = [f"The red dog saw {number} cats. It barked." for number in range(40)]
    texts = [{"text": text} for text in [*texts, 5]]
    texts_run = {"data": texts, "tokenizer": tokenizer, "source": model, **options}
    done = firth.pretrain(out=tmp_path / "run", **texts_run)
    assert any("`data` row 41" in note for note in done.notes)
    assert done.notes == done.values()["notes"]
    parent = json.loads((tmp_path / "run/run.json").read_text())["parents"]["source"]
    assert parent["path"] == str(models["encoder"])
    with torch.no_grad():
        model.network.get_parameter("tokens.weight").mul_(2)
    other = firth.pretrain(
        out=tmp_path / "other", **{**texts_run, "data": done.path / "shards", "tokenizer": None}
    )
    assert (other.path / "source/model.safetensors").is_file()
    no_tokenizer = {"tokenizer": None, "source": None, "preset": "encoder-tiny"}
    for wrong, facts in ((no_tokenizer, "tokenizer"), ({"data": None}, "None")):
        with pytest.raises(UsageError, match=facts):
            firth.pretrain(out=tmp_path / "wrong", **{**texts_run, **wrong})
    with pytest.raises(UsageError, match="finished run"):
        firth.pretrain(out=tmp_path / "run", **texts_run)


def test_a_preset_with_random_weights(
    models: dict[str, Path], firth_here: Callable[..., Any], tmp_path: Path, file: Path
) -> None:
    arguments = ("finetune", "bert-tiny", "--tokenizer", models["encoder"], "--task", "classify")
    arguments += ("--train", file, "--set", "steps=2", "--precision", "fp32")
    made = firth_here(*arguments, "--scratch", "--out", "run")
    assert made.returncode == 0, made.error
    assert firth.load(tmp_path / "run").config.num_layers == 2
    assert "bert-tiny" in json.loads((tmp_path / "run/run.json").read_text())["job"]["model"]
    refused = firth_here(*arguments, "--out", "other")
    assert refused.returncode == 2
    assert "--scratch" in refused.error
