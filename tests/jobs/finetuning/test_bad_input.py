"""Invalid files and options: one sentence with file and line, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import predict
from firth.model import Model, load
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError
from tests.conftest import in_process
from tests.jobs.finetuning.toys import TINY, coloured, named, table
from tests.training.conftest import Killed, kill_at

GOOD = "text\tlabel\n" + "red dog\tx\ngreen dog\ty\n" * 8
CHAT = '{"messages": [{"role": "user", "content": "Hello."}]}\n'
NAMES = "anna B-PER\nran O\n\nrome B-LOC\nfell O\n\ntim B-PER\nsaw O\nparis B-LOC\n"


# The task, the file, its content, and the facts of the error; `tests/tasks/readers` has more.
FILES: list[tuple[str, str, str, str]] = [
    ("classify", "a.tsv", "text\tlabel\nfine\tx\n \ty\n", "line 3: 'text' is empty"),
    ("classify", "a.tsv", "", "no examples"),
    ("classify", "a.tsv", "text\tlabel\nfine\tx\n", "label 'x'"),
    ("classify", "a.tsv", "text\tlabel\n" + "fine\tx\n" * 9, "label 'x'"),
    ("classify", "a.jsonl", '{"text": "fine", "label": []}\n' * 9, "has a label"),
    ("regress", "a.tsv", "text\tlabel\n" + "fine\t1\n" * 9, "label 1.0"),
    ("tag", "a.conll", "ada O\n\nsleeps O\n\nran O\n", "label 'O'"),
    ("lm", "a.jsonl", CHAT, r"line 1: .*assistant.*\(user\)"),
    ("lm", "a.txt", "\n\n", "no text"),
]


@pytest.mark.parametrize(("task", "name", "content", "facts"), FILES)
def test_invalid_training_files(
    task: str, name: str, content: str, facts: str, models: dict[str, Path], tmp_path: Path
) -> None:
    train = tmp_path / name
    train.write_text(content, encoding="utf-8")
    model = models["decoder" if task == "lm" else "encoder"]
    with pytest.raises(InputError, match=facts) as caught:
        finetune(model, task=task, train=train, out=tmp_path / "run")
    assert str(train) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_limit_that_leaves_too_few_examples(models: dict[str, Path], tmp_path: Path) -> None:
    """The error names the limit, which removes all examples of a label."""
    many = tmp_path / "many.tsv"
    many.write_text("text\tlabel\n" + "fine\tx\nbad\ty\n" * 9, encoding="utf-8")
    for dev in (None, many):
        files = {"train": many, "dev": dev, "out": tmp_path / "run"}
        with pytest.raises(InputError, match=r"many\.tsv with `limit` 1 have the label"):
            finetune(models["encoder"], task="classify", limit=1, **files)


JSON_TAGS = '{"words": ["a"], "tags": ["O"]}\n{"words": ["ran", "red"], "tags": ["O", "B-COL"]}\n'
# The task, the training data, the dev file, its content, and the facts of the error.
DEV_FILES: list[tuple[str, str, str, str, str]] = [
    ("classify", GOOD, "b.tsv", "text\tlabel\nred\tx\nblue\tz\n", "line 3: .*'z'.*'x', 'y'"),
    ("classify", GOOD, "b.jsonl", '{"text": "red", "label": ["x", "y"]}', "line 1: .*one label"),
    ("tag", NAMES, "b.conll", "anna B-PER\n\nrome B-LOC\nred B-COL\n", "line 4: .*'B-COL'.*'red'"),
    ("tag", NAMES, "b.jsonl", JSON_TAGS, "line 2: .*'B-COL'.*'red'"),
    ("tag", NAMES, "b.parquet", JSON_TAGS, "row 2: .*'B-COL'.*'red'"),
    ("classify", GOOD, "b.tsv", "", "no examples"),
]


@pytest.mark.parametrize(("task", "training", "name", "content", "facts"), DEV_FILES)
def test_invalid_dev_files(
    task: str,
    training: str,
    name: str,
    content: str,
    facts: str,
    models: dict[str, Path],
    tmp_path: Path,
) -> None:
    train, dev = tmp_path / ("a.conll" if task == "tag" else "a.tsv"), tmp_path / name
    train.write_text(training, encoding="utf-8")
    if name.endswith("parquet"):
        rows = [json.loads(line) for line in content.splitlines()]
        pq.write_table(pa.Table.from_pylist(rows), dev)
    else:
        dev.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=rf"{name} .*{facts}|{name} {facts}"):
        finetune(models["encoder"], task=task, train=train, dev=dev, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Options of `finetune` and settings, and the facts of the error.
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"task": "clasify"}, "'clasify'.*classify"),
    ({"recipe": "squad"}, "'squad'.*classify.*sentiment, topic, spam"),
    ({"strategy": "loar"}, "'loar'.*lora"),
    ({"columns": {"txt": "a"}}, "classify .*text, .*'txt'"),
    ({"augment": "shuffle"}, "`augment` .*dropout, swap, masked, not 'shuffle'"),
    ({"device": "meta"}, "'meta'.*cpu, cuda or mps"),
    ({"overrides": {"head.layer": 2}}, r"'head\.layer'.*head\.layers"),
    ({"overrides": {"head.pooling": "median"}}, "pooling .*'median'.*first, last, mean"),
    ({"overrides": {"task.prefix": "a"}}, r"classify .*task\.prefix"),
    ({"overrides": {"learning_rte": 1}}, "'learning_rte'.*learning_rate"),
    ({"overrides": {"max_length": "1000"}}, "max_length 1000 .*128"),
    ({"overrides": {"epochs": "0"}}, "epochs"),
    ({"overrides": {"batch_size": "abc"}}, "batch_size .*'abc'"),
    ({"overrides": {"learning_rate": "-1"}}, "learning_rate"),
    ({"overrides": {"replay_every": 0}}, "replay.* 0"),
    ({"task": "tag", "balance": True}, "`balance`"),
    ({"task": "tag", "augment": "swap"}, "`augment`"),
    ({"task": "lm", "overrides": {"head.layers": 2}}, r"head\.layers"),
    ({"task": "seq2seq", "overrides": {"task.written": 0}}, "at least 1"),
    ({"task": "seq2seq", "overrides": {"max_length": 4}}, "max_length .*room"),
    ({"task": "seq2seq", "overrides": {"task.prefx": "a"}}, r"task\.prefix"),
]


@pytest.mark.parametrize(("options", "facts"), OPTIONS)
def test_invalid_options(
    options: dict[str, Any], facts: str, models: dict[str, Path], tmp_path: Path
) -> None:
    task = options.get("task", "classify")
    files = {
        "regress": table(tmp_path / "r.tsv", "text label", [("red dog", i) for i in range(20)]),
        "tag": named(tmp_path)[0],
        "lm": tmp_path / "t.txt",
        "seq2seq": table(tmp_path / "s.tsv", "source target", [("a dog", "dog")] * 9),
    }
    files["lm"].write_text("The dog ran.\n\nThe river rose.\n", encoding="utf-8")
    train = files.get(task) or coloured(tmp_path)[0]
    model = models["decoder" if task in ("lm", "seq2seq") else "encoder"]
    with pytest.raises(UsageError, match=facts):
        finetune(model, train=train, out=tmp_path / "run", **{"task": task, **options})
    assert not (tmp_path / "run").exists()


def test_missing_files(models: dict[str, Path], tmp_path: Path) -> None:
    train, _ = coloured(tmp_path)
    gone = tmp_path / "gone.tsv"
    for files in ({"train": gone}, {"train": train, "dev": gone}, {"train": train, "replay": gone}):
        with pytest.raises(InputError, match=r"gone\.tsv"):
            finetune(models["encoder"], task="classify", out=tmp_path / "run", **files)
    with pytest.raises(InputError, match=r"\./gone"):
        finetune("./gone", task="classify", train=train, out=tmp_path / "run")
    with pytest.raises(InputError, match="is a folder"):
        finetune(models["encoder"], task="classify", train=tmp_path, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_files_are_not_overwritten(models: dict[str, Path], tmp_path: Path) -> None:
    train, _ = coloured(tmp_path)
    taken = tmp_path / "letters"
    taken.mkdir()
    (taken / "dear.txt").write_text("Dear", encoding="utf-8")
    for out, fact in ((taken, "holds no run"), (train, "is a file")):
        with pytest.raises(UsageError, match=fact):
            finetune(models["encoder"], task="classify", train=train, out=out, overrides=TINY)
    assert [path.name for path in taken.iterdir()] == ["dear.txt"]


def test_models_that_are_not_suitable(models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = coloured(tmp_path)
    files = {"task": "classify", "train": train, "out": tmp_path / "run"}
    with pytest.raises(MismatchError, match=r"not fine-tuned.*`firth finetune`"):
        predict(models["encoder"], data=dev)
    with pytest.raises(MismatchError, match="no head for classify"):
        evaluate(models["encoder"], data=dev, task="classify")
    with pytest.raises(MismatchError, match="likelihood of a whole text"):
        evaluate(models["encoder-decoder"], data=dev, task="lm")
    bare = tmp_path / "bare"
    Model(load(models["encoder"]).network, None).save(bare)
    with pytest.raises(MismatchError, match="bare has no tokenizer"):
        finetune(bare, **files)
    assert not (tmp_path / "run").exists()
    with pytest.raises(Killed):
        finetune(models["encoder"], overrides=TINY | {"steps": 6}, callbacks=kill_at(3), **files)
    with pytest.raises(FirthError):  # an unfinished run is not a model
        predict(tmp_path / "run", data=dev)


def test_invalid_uses_of_a_fine_tuned_model(
    tune: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    train, dev = coloured(tmp_path)
    tuned = tune("encoder", "classify", "", train=train, dev=dev, out=tmp_path / "first")
    scores = table(tmp_path / "scores.tsv", "text label", [("red dog", 1.5)])
    other = table(tmp_path / "other.tsv", "text label", [("red dog", "z")])
    with pytest.raises(MismatchError, match="classify, not on regress"):
        evaluate(tuned.path, data=scores, task="regress")
    with pytest.raises(InputError, match=r"other\.tsv line 2: .*'z'"):
        evaluate(tuned.path, data=other)
    with pytest.raises(MismatchError, match="no head for tag"):
        predict(tuned.path, data=dev, task="tag")
    for use in (evaluate, predict):
        with pytest.raises(UsageError, match="columns of classify"):
            use(tuned.path, data=dev, columns={"words": "text"})
    (tmp_path / "text.txt").write_text("The dog ran.\n\nThe river rose.\n", encoding="utf-8")
    for options in ({"replay": tmp_path / "text.txt"}, {"augment": "masked"}):
        files = {"train": train, "dev": dev, "out": tmp_path / "run"}
        with pytest.raises(MismatchError, match="language head"):  # dropped by fine-tuning
            finetune(tuned.path, task="classify", **files, **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        ("--task seq2seq", 1, "a decoder or an encoder-decoder"),
        ("--task classify --set epochs", 2, "KEY=VALUE"),
        ("--task classify --column text=review", 1, "colours.tsv line 1 has no column 'review'"),
        ("--task classify --seeds 2 --search", 2, "--seeds, --search"),
        ("--task classify --seeds 2 --resume", 2, "--resume"),
        ("--task classify --search --strategy lora", 2, "--strategy"),
        ("--task classify --search --set learning_rate=1", 2, "learning_rate"),
        ("--task classify --minutes 2", 2, "--search"),
    ],
)
def test_errors_on_the_command_line(
    words: str, code: int, fact: str, models: dict[str, Path], tmp_path: Path
) -> None:
    train, _ = coloured(tmp_path)
    files = ["--train", str(train), "--out", str(tmp_path / "run")]
    done = in_process("finetune", models["encoder"], *files, *words.split())
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1)
    assert fact in done.error
    assert not (tmp_path / "run").exists()
