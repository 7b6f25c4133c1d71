"""What is wrong is said in one sentence, with file and line, and nothing stays behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from firth.cli.app import app
from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import predict
from firth.model import Model, load
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError
from tests.jobs.finetuning.toys import TINY, coloured, named, table

GOOD = "text\tlabel\n" + "red dog\tx\ngreen dog\ty\n" * 8
NAMES = "anna B-PER\nran O\n\nrome B-LOC\nfell O\n\ntim B-PER\nsaw O\nparis B-LOC\n"
CHAT = '{"messages": [{"role": "user", "content": "Hello."}]}\n'


def squad(answer: str, start: int = 0) -> str:
    question = {"id": "7", "question": "Who?", "answers": [{"text": answer, "answer_start": start}]}
    return json.dumps({"data": [{"paragraphs": [{"context": "Ada sleeps.", "qas": [question]}]}]})


# task -> file name, what it holds, what is said of it
FILES: list[tuple[str, str, str, str]] = [
    (
        "classify",
        "a.tsv",
        "review\tx\ty\nfine\tz\tw\n",
        r"a.tsv line 1 has no column 'label' \(it has 'review', 'x', 'y'\)",
    ),
    (
        "classify",
        "a.tsv",
        "stars\tlabel\n5\tx\n",
        r"a.tsv line 1 has no column 'text' \(it has 'stars', 'label'\)",
    ),
    ("pair", "a.csv", "text,label\nfine,x\n", r"a.csv line 1 has no column 'text_a' and 'text_b'"),
    ("classify", "a.tsv", "text\tlabel\nfine\tx\n \ty\n", "a.tsv line 3: 'text' is empty"),
    ("classify", "a.tsv", "text\tlabel\nfine\tx\nbad\t\n", "a.tsv line 3: 'label' is empty"),
    ("classify", "a.tsv", "", "a.tsv has no examples"),
    ("classify", "a.tsv", "text\tlabel\n", "a.tsv has no examples"),
    ("classify", "a.tsv", "text\tlabel\nfine\tx\n", "a.tsv has one example"),
    ("classify", "a.tsv", "text\tlabel\nfine\tx\nbad\ty\n", "a.tsv has each label only once"),
    (
        "classify",
        "a.tsv",
        "text\tlabel\n" + "fine\tx\n" * 9,
        "a.tsv have the label 'x'",
    ),
    ("classify", "a.jsonl", '{"text": "fine", "label": []}\n' * 9, "in .*a.jsonl has a label"),
    (
        "regress",
        "a.tsv",
        "text\tlabel\nfine\t1\nbad\tnan\n",
        "a.tsv line 3: 'label' is 'nan', not a finite",
    ),
    (
        "regress",
        "a.tsv",
        "text\tlabel\nfine\t1\nbad\tgood\n",
        "a.tsv line 3: 'label' is 'good', not a finite",
    ),
    (
        "regress",
        "a.tsv",
        "text\tlabel\n" + "fine\t1\n" * 9,
        "a.tsv have the label 1.0",
    ),
    ("tag", "a.conll", "ada B-PER\nsleeps\n", "a.conll line 2: 1 fields where line 1 has 2"),
    (
        "tag",
        "a.conll",
        "ada O\n\nsleeps O\n\nran O\n",
        "2 training words .*a.conll have the label 'O'",
    ),
    (
        "span",
        "a.json",
        squad("Bob"),
        r"a.json question 1 \(id 7\): the answer 'Bob' is not in its context",
    ),
    ("span", "a.json", squad("sleeps", 3), "a.json question 1 .* is not at 3"),
    ("span", "a.json", "{", "a.json line 1 is not JSON"),
    (
        "choice",
        "a.jsonl",
        '{"text": "a", "choices": ["b", "c"], "label": 2}',
        "a.jsonl line 1: 'label' is '2', which names none",
    ),
    ("seq2seq", "a.tsv", "source\ttarget\na\t\n", "a.tsv line 2: 'target' is empty"),
    ("lm", "a.jsonl", CHAT, r"a.jsonl line 1: training uses the assistant's turns.*\(user\)"),
    ("lm", "a.txt", "\n\n", "a.txt has no text"),
]


@pytest.mark.parametrize(("task", "name", "content", "says"), FILES)
def test_a_bad_file(
    task: str, name: str, content: str, says: str, models: dict[str, Path], tmp_path: Path
) -> None:
    train = tmp_path / name
    train.write_text(content, encoding="utf-8")
    model = models["decoder" if task in ("seq2seq", "lm") else "encoder"]
    with pytest.raises(InputError, match=says) as caught:
        finetune(model, task=task, train=train, out=tmp_path / "run")
    assert str(caught.value).count("\n") == 0
    assert not (tmp_path / "run").exists()


def test_a_sample_that_is_too_small(models: dict[str, Path], tmp_path: Path) -> None:
    """The file is not to blame, unless the limit takes nothing from it."""
    many, few = tmp_path / "many.tsv", tmp_path / "few.tsv"
    many.write_text("text\tlabel\n" + "fine\tx\nbad\ty\n" * 9, encoding="utf-8")
    few.write_text("text\tlabel\nfine\tx\nbad\ty\n", encoding="utf-8")
    for train, limit, dev, says in (
        (many, 1, None, "many.tsv with --limit 1 has one example"),
        (many, 2, None, "many.tsv with --limit 2 has each label only once"),
        (many, 1, many, "in .*many.tsv with --limit 1 have the label '.'"),
        (few, 99, None, "few.tsv has each label only once"),
    ):
        files = {"train": train, "dev": dev, "out": tmp_path / "run"}
        with pytest.raises(InputError, match=says):
            finetune(models["encoder"], task="classify", limit=limit, **files)


# task, what is learned from, dev file, what it holds, what is said of it
DEVS: list[tuple[str, str, str, str, str]] = [
    (
        "classify",
        GOOD,
        "b.tsv",
        "text\tlabel\nred\tx\nblue\tz\n",
        "b.tsv line 3: the label 'z' is not in the training data, which has 'x', 'y'",
    ),
    (
        "classify",
        GOOD,
        "b.jsonl",
        '{"text": "red", "label": ["x", "y"]}',
        "b.jsonl line 1: examples of the training data have one label",
    ),
    (
        "tag",
        NAMES,
        "b.conll",
        "anna B-PER\n\nrome B-LOC\nred B-COL\n",
        "b.conll line 4: the tag 'B-COL' of 'red'",
    ),
    (
        "tag",
        NAMES,
        "b.jsonl",
        '{"words": ["a"], "tags": ["O"]}\n{"words": ["ran", "red"], "tags": ["O", "B-COL"]}\n',
        "b.jsonl line 2: the tag 'B-COL' of 'red'",
    ),
    ("classify", GOOD, "b.tsv", "", "b.tsv has no examples"),
]


@pytest.mark.parametrize(("task", "learned", "name", "content", "says"), DEVS)
def test_a_bad_dev_file(
    task: str,
    learned: str,
    name: str,
    content: str,
    says: str,
    models: dict[str, Path],
    tmp_path: Path,
) -> None:
    train = tmp_path / ("a.conll" if task == "tag" else "a.tsv")
    train.write_text(learned, encoding="utf-8")
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=says):
        finetune(
            models["encoder"], task=task, train=train, dev=tmp_path / name, out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_a_parquet_file_is_told_by_its_row(models: dict[str, Path], tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {"words": [["a"], ["ran", "red"]], "tags": [["O"], ["O", "B-COL"]]}
    pq.write_table(pa.table(rows), tmp_path / "dev.parquet")
    train, _ = named(tmp_path)
    with pytest.raises(InputError, match=r"dev\.parquet row 2: the tag 'B-COL' of 'red'"):
        finetune(
            models["encoder"],
            task="tag",
            train=train,
            dev=tmp_path / "dev.parquet",
            out=tmp_path / "run",
        )


# what is asked for, what is said of it
ASKED: list[tuple[dict[str, Any], str]] = [
    ({"task": "clasify"}, "There is no task 'clasify'; did you mean classify"),
    ({"recipe": "squad"}, "no recipe 'squad' for classify; there are sentiment, topic, spam"),
    ({"strategy": "loar"}, "no strategy 'loar'; did you mean lora"),
    ({"strategy": "freeze:9"}, "freeze:9"),
    ({"strategy": "lora:rnak=2"}, "lora has no option 'rnak'; did you mean rank"),
    ({"head.layer": 2}, r"'head\.layer'.* did you mean head\.layers"),
    ({"head.layers": "two"}, r"head\.layers .*'two'"),
    ({"head.pooling": "median"}, "pooling cannot be 'median'; known are first, last, mean"),
    ({"task.prefix": "a"}, "classify has no settings.*task\\.prefix"),
    ({"learning_rte": 1}, "'learning_rte'.*did you mean learning_rate"),
    ({"columns": {"txt": "a"}}, "The columns of classify are text, .*, not 'txt'"),
    ({"max_length": "1000"}, "max_length 1000 .*128"),
    ({"max_length": "long"}, "max_length .*, not 'long'"),
    ({"epochs": "0"}, "epochs"),
    ({"epochs": "nan"}, "epochs .*'nan'"),
    ({"batch_size": "abc"}, "batch_size .*, not 'abc'"),
    ({"batch_size": "16:0.5,32"}, "batch_size .*16:0.5,32"),
    ({"learning_rate": "-1"}, "learning_rate"),
    ({"replay_every": 0}, "replay.* 0"),
    ({"augment": "shuffle"}, "--augment .*dropout, swap, masked, not 'shuffle'"),
    ({"device": "tpu"}, "no device 'tpu'"),
    ({"device": "meta"}, "no device 'meta'; choose cpu, cuda or mps"),
]


@pytest.mark.parametrize(("asked", "says"), ASKED)
def test_a_wrong_wish(
    asked: dict[str, Any], says: str, models: dict[str, Path], tmp_path: Path
) -> None:
    train, _ = coloured(tmp_path)
    names = ("task", "recipe", "strategy", "columns", "augment", "device")
    options = {name: asked[name] for name in names if name in asked}
    overrides = {name: value for name, value in asked.items() if name not in names}
    given = {"task": "classify", "overrides": TINY | overrides} | options
    with pytest.raises(UsageError, match=says):
        finetune(models["encoder"], train=train, out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": "regress", "balance": True}, "--balance is for"),
        ({"task": "tag", "balance": True}, "--balance is for"),
        ({"task": "tag", "augment": "swap"}, "--augment is for"),
        ({"task": "lm", "overrides": {"head.layers": 2}}, "head\\.layers"),
        ({"task": "seq2seq", "overrides": {"task.written": 0}}, "at least 1"),
        ({"task": "seq2seq", "overrides": {"max_length": 4}}, "max_length .* leaves no room"),
        ({"task": "seq2seq", "overrides": {"task.prefx": "a"}}, r"did you mean task\.prefix"),
    ],
)
def test_wishes_that_a_task_cannot_grant(
    options: dict[str, Any], says: str, models: dict[str, Path], tmp_path: Path
) -> None:
    files = {
        "regress": table(tmp_path / "r.tsv", "text label", [("red dog", i) for i in range(20)]),
        "tag": named(tmp_path)[0],
        "lm": tmp_path / "t.txt",
        "seq2seq": table(tmp_path / "s.tsv", "source target", [("a dog", "dog")] * 9),
    }
    files["lm"].write_text("The dog ran.\n\nThe river rose.\n", encoding="utf-8")
    model = models["decoder" if options["task"] in ("lm", "seq2seq") else "encoder"]
    with pytest.raises(UsageError, match=says):
        finetune(model, train=files[options["task"]], out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_files_that_are_not_there(models: dict[str, Path], tmp_path: Path) -> None:
    train, _ = coloured(tmp_path)
    gone = tmp_path / "gone.tsv"
    for files in ({"train": gone}, {"train": train, "dev": gone}, {"train": train, "replay": gone}):
        with pytest.raises(InputError, match=r"There is no file or folder .*gone\.tsv"):
            finetune(models["encoder"], task="classify", out=tmp_path / "run", **files)
    with pytest.raises(InputError, match=r"There is no model at \./gone"):
        finetune("./gone", task="classify", train=train, out=tmp_path / "run")
    with pytest.raises(InputError, match="is a folder; name a file"):
        finetune(models["encoder"], task="classify", train=tmp_path, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_place_that_is_taken(models: dict[str, Path], tmp_path: Path) -> None:
    train, _ = coloured(tmp_path)
    taken = tmp_path / "letters"
    taken.mkdir()
    (taken / "dear.txt").write_text("Dear", encoding="utf-8")
    for out, says in ((taken, "holds no run"), (train, "is a file")):
        with pytest.raises(UsageError, match=says):
            finetune(models["encoder"], task="classify", train=train, out=out, overrides=TINY)
    assert [path.name for path in taken.iterdir()] == ["dear.txt"]


def test_an_unfinished_run_is_no_model(models: dict[str, Path], tmp_path: Path) -> None:
    """A run that was stopped is not taken for one that has ended."""
    train, dev = coloured(tmp_path)

    def stop(kind: str, metrics: dict[str, Any]) -> None:
        if metrics.get("step") == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(
            models["encoder"],
            task="classify",
            train=train,
            dev=dev,
            out=tmp_path / "run",
            overrides=TINY | {"steps": 6},
            callback=stop,
        )
    with pytest.raises(FirthError):
        predict(tmp_path / "run", data=dev)


def test_models_that_cannot(models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = coloured(tmp_path)
    with pytest.raises(MismatchError, match=r"was not fine-tuned on a task: use `firth finetune`"):
        predict(models["encoder"], data=dev)
    with pytest.raises(MismatchError, match="has no head for classify"):
        evaluate(models["encoder"], data=dev, task="classify")
    with pytest.raises(MismatchError, match="has no likelihood of a whole text"):
        evaluate(models["encoder-decoder"], data=dev, task="lm")
    bare = tmp_path / "bare"
    Model(load(models["encoder"]).network, None).save(bare)
    with pytest.raises(MismatchError, match="bare has no tokenizer"):
        finetune(bare, task="classify", train=train, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_was_forgotten_cannot_be_replayed(
    tune: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    """A model that was fine-tuned has no language head any more."""
    first = tune("encoder", "classify", "sentiment", out=tmp_path / "first")
    text = tmp_path / "text.txt"
    text.write_text("The dog ran.\n\nThe river rose.\n", encoding="utf-8")
    train, dev = coloured(tmp_path)
    with pytest.raises(MismatchError, match="no language head, which replay needs"):
        finetune(
            first.path, task="classify", train=train, dev=dev, out=tmp_path / "run", replay=text
        )
    with pytest.raises(MismatchError, match="an encoder with its language head"):
        finetune(
            first.path,
            task="classify",
            train=train,
            dev=dev,
            out=tmp_path / "run",
            augment="masked",
        )
    assert not (tmp_path / "run").exists()


def test_wrong_questions_to_a_taught_model(
    tune: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    train, dev = coloured(tmp_path)
    tuned = tune("encoder", "classify", "", train=train, dev=dev)
    scores = table(tmp_path / "scores.tsv", "text label", [("red dog", 1.5)])
    other = table(tmp_path / "other.tsv", "text label", [("red dog", "z")])
    with pytest.raises(MismatchError, match="was fine-tuned on classify, not on regress"):
        evaluate(tuned.path, data=scores, task="regress")
    with pytest.raises(InputError, match=r"other\.tsv line 2: the label 'z'"):
        evaluate(tuned.path, data=other)
    with pytest.raises(MismatchError, match="has no head for tag"):
        predict(tuned.path, data=dev, task="tag")
    for ask in (evaluate, predict):
        with pytest.raises(UsageError, match="The columns of classify are"):
            ask(tuned.path, data=dev, columns={"words": "text"})


# ---- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("--task clasify", 2, "did you mean classify"),
        ("--task seq2seq", 1, "use a decoder or an encoder-decoder"),
        ("--task classify --set epochs=0", 2, "epochs"),
        ("--task classify --set epochs", 2, "--set takes KEY=VALUE"),
        ("--task classify --column text=review", 1, "colours.tsv line 1 has no column 'review'"),
        ("--task classify --seeds 2 --search", 2, "--seeds, --search and several strategies"),
        ("--task classify --seeds 2 --resume", 2, "--resume continues one run"),
        ("--task classify --search --strategy lora", 2, "omit --strategy"),
        (
            "--task classify --search --set learning_rate=1",
            2,
            "The search sets learning_rate itself",
        ),
        ("--task classify --minutes 2", 2, "--minutes is for --search"),
    ],
)
def test_the_command_line(
    words: str, code: int, says: str, models: dict[str, Path], tmp_path: Path
) -> None:
    train, _ = coloured(tmp_path)
    files = ["--train", str(train), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["finetune", str(models["encoder"]), *files, *words.split()])
    assert done.exit_code == code
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.startswith("firth: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
