"""Predictions of files and texts: bad rows are reported, the others are predicted."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from firth.cli.verbs import as_options
from firth.cli.views import predictions as views
from firth.jobs.evaluation import evaluate
from firth.jobs.prediction import PredictionResult, predict
from firth.model import load
from firth.tasks.readers.examples import LabelledExample
from firth.utils.errors import FirthError, InputError, MismatchError, UsageError
from firth.utils.files import partial_path
from firth.utils.streams import MAX_LEADING_ERRORS
from tests.conftest import Result, in_process
from tests.jobs.finetuning.toys import Files, table

RunOf = Callable[[str], Path]
Firth = Callable[..., Result]

# ---- bad rows

GOOD = b'{"text": "the red dog"}\n'
QUESTION = b'{"question": "who", "context": "daisy ran", "id": 1}\n'
ARTICLE = {
    "paragraphs": [
        {"context": "erik ran", "qas": [{"question": "who"}, {"id": "b"}]},
        {"qas": []},
        {"context": "daisy ran", "qas": [{"question": "who"}]},
    ]
}
UTF8 = "is not UTF-8"
EMPTY = "is empty"
# The task, the file's ending and content, the facts in the error of each bad row (by its number
# from 0), and the number of good rows.
BAD: dict[str, tuple[str, str, bytes, dict[int, list[str]], int]] = {
    "json": (
        "classify",
        "jsonl",
        GOOD + b"{oops\n[1]\n" + GOOD + b'{"texts": "x"}\n{"text": 7}\n{"text": "\xff"}\n' + GOOD,
        {
            1: ["line 2", "not JSON"],
            2: ["line 3", "list"],
            4: ["line 5", "'text'"],
            5: ["line 6", "'text'", "int", "7"],
            6: ["line 7", "byte 95", UTF8],
        },
        3,
    ),
    "first row": (
        "classify",
        "jsonl",
        b'{"other": "x"}\n' + GOOD,
        {0: ["line 1", "no column 'text'", "'other'"]},
        1,
    ),
    "tsv": (
        "classify",
        "tsv",
        b"text\tlabel\nthe red dog\tx\nthe green dog\nthe \xe9\tx\nthe green dog\tnever seen\n",
        {1: ["line 3", "1 fields", "2"], 2: ["line 4", "byte 43", UTF8]},
        2,
    ),
    "csv": (
        "classify",
        "csv",
        b'text,label\n"the \xe9\nred",x\n"a" dog,x\nthe red dog,x\n',
        {0: ["line 2", "byte 16", UTF8], 1: ["line 4", "expected"]},
        1,
    ),
    "lines": (
        "classify",
        "txt",
        b"the red dog\n\n\xff\xf0\nthe green dog\n \t\n",
        {1: ["line 2", EMPTY], 2: ["line 3", "byte 13", UTF8], 4: ["line 5", EMPTY]},
        2,
    ),
    "empty field": (
        "seq2seq",
        "tsv",
        b"source\ttarget\nthe dog\tx\n \tx\nthe river\t\n",
        {1: ["line 3", EMPTY]},
        2,
    ),
    "words": (
        "tag",
        "jsonl",
        b'{"words": ["erik", "ran"]}\n{"words": "erik"}\n{"words": ["a", ""]}\n{"words": []}\n',
        {1: ["line 2", "'words'", "str"], 2: ["line 3", EMPTY], 3: ["line 4", EMPTY]},
        1,
    ),
    "questions": (
        "span",
        "jsonl",
        QUESTION + b'{"question": "who"}\n' + QUESTION,
        {1: ["line 2", "'context'", "'question'"]},
        2,
    ),
    "article": (
        "span",
        "json",
        json.dumps({"data": [ARTICLE]}).encode(),
        {1: ["question 2", "id b", "'question'"], 2: ["article 1, paragraph 2", "'context'"]},
        2,
    ),
    "choices": (
        "choice",
        "jsonl",
        b'{"text": "the dog", "choices": ["barked", "sang"], "label": "howled"}\n'
        b'{"text": "the dog", "choices": ["barked"]}\n',
        {1: ["line 2", "choice", "two"]},
        1,
    ),
    "passages": (
        "lm",
        "jsonl",
        b'{"text": "The dog ran."}\n{"text": [{"role": "user"}]}\n{"text": "The river"}\n',
        {1: ["line 2", "turn 1", "'content'"]},
        2,
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_rows_are_reported_and_others_are_predicted(
    what: str, run_of: RunOf, firth_here: Firth
) -> None:
    task, ending, content, wrong, good = BAD[what]
    name = f"rows.{ending}"
    Path(name).write_bytes(content)
    run = run_of(task)
    done = firth_here("predict", run, "--data", name, "--out", "answers.jsonl")
    assert done.returncode == 0
    *errors, last = done.stderr.splitlines()
    for error, facts in zip(errors, wrong.values(), strict=True):
        assert all(fact in error for fact in [name, *facts]), error
    assert last.startswith(f"{len(wrong)} row")
    lines = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert {place for place, line in enumerate(lines) if line is None} == set(wrong)
    assert sum(line is not None for line in lines) == good
    found = firth_here("predict", run, "--data", name, "--json")
    assert found.returncode == 0
    assert found.json["notes"] == [*errors, last]
    assert found.json["bad"] == len(wrong)
    assert found.json["predictions"] == lines
    with pytest.raises(InputError) as error:
        predict(run, data=name, strict=True)
    assert as_options(str(error.value), ["columns"]) == errors[0]


def test_many_bad_rows_are_counted(run_of: RunOf, firth_here: Firth) -> None:
    Path("rows.jsonl").write_bytes(GOOD + b"{\n" * 50 + GOOD)
    done = firth_here("predict", run_of("classify"), "--data", "rows.jsonl")
    assert [bool(line) for line in done.stdout.splitlines()] == [True, *[False] * 50, True]
    assert len(done.stderr.splitlines()) == 21
    assert "50 rows were bad" in done.stderr
    assert "the first 20" in done.stderr


@pytest.mark.parametrize("rows", [3, MAX_LEADING_ERRORS + 50])
def test_a_file_of_bad_rows_alone_is_one_error(rows: int, run_of: RunOf, tmp_path: Path) -> None:
    file, out = table(tmp_path / "rows.tsv", "a b", [("x", "y")] * rows), tmp_path / "out.jsonl"
    done = in_process("predict", run_of("classify"), "--data", file, "--out", out, "--json")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert f"{file} line 1 has no column 'text' (it has 'a', 'b')" in done.error
    assert not out.exists()
    assert not partial_path(out).exists()


def test_an_open_quotation_mark_is_an_error_of_the_file(run_of: RunOf, tmp_path: Path) -> None:
    """The number of rows inside the quotation is unknown."""
    file, out = tmp_path / "rows.csv", tmp_path / "out.jsonl"
    file.write_text('text\nthe red dog\n"the green\ndog\n', encoding="utf-8")
    done = in_process("predict", run_of("classify"), "--data", file, "--out", out)
    assert done.returncode == 1
    assert "line 4: unexpected end of data" in done.stderr
    assert not out.exists()


def test_labels_are_ignored(run_of: RunOf, tmp_path: Path) -> None:
    rows = [("the red dog", "never seen"), ("the green dog", "")]
    found = predict(run_of("classify"), data=table(tmp_path / "rows.tsv", "text label", rows))
    assert [answer["label"] for answer in found.answers] == ["x", "y"]
    tagged = tmp_path / "rows.conll"
    tagged.write_text("erik B-NEVER\nran odd\n\ndaisy O\n", encoding="utf-8")
    assert len(predict(run_of("tag"), data=tagged).answers) == 2


# ---- texts and standard input


def test_texts_equal_a_file_of_texts(run_of: RunOf, tmp_path: Path) -> None:
    texts = ["the red dog", "the green dog"]
    found = in_process("predict", run_of("classify"), *texts, "--json").json["predictions"]
    assert [answer["label"] for answer in found] == ["x", "y"]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    assert found == predict(run_of("classify"), data=file).answers
    assert found == predict(run_of("classify"), texts=texts).answers
    (one,) = predict(run_of("classify"), texts=texts[0]).answers  # a string is one text
    assert one["label"] == "x"
    tagged = predict(run_of("tag"), texts=["erik's dog, paris."]).answers
    assert tagged[0]["words"] == ["erik", "'s", "dog", ",", "paris", "."]
    for task in ("lm", "seq2seq"):
        assert len(predict(run_of(task), texts=texts).answers) == 2
    done = in_process("predict", run_of("classify"), "the red dog", "", "the green dog")
    assert done.returncode == 0
    assert done.stderr.startswith("text 2 is empty")
    assert [line[:1] for line in done.stdout.splitlines()] == ["x", "", "y"]


def test_a_limited_evaluation_samples_every_label(run_of: RunOf, tmp_path: Path) -> None:
    """The file is sorted by label: its first rows have one label only."""
    rows = [(f"the red dog {i}", "x") for i in range(30)]
    rows += [(f"the green dog {i}", "y") for i in range(10)]
    file = table(tmp_path / "sorted.tsv", "text label", rows)
    result = evaluate(run_of("classify"), data=file, limit=8)
    assert result.n == 8
    assert result.metrics["macro_f1"].value > 0.5  # with one label alone, at most 0.5
    assert any("8 of 40" in note for note in result.notes)


@pytest.mark.parametrize(("task", "how"), [("tag", "uniformly"), ("regress", "stratified")])
def test_a_limited_evaluation_says_how_it_samples(
    task: str, how: str, run_of: RunOf, task_files: dict[str, Files]
) -> None:
    _, dev = task_files[task]
    all_examples, *both = (evaluate(run_of(task), data=dev, limit=n) for n in (0, 9, 9))
    assert both[0].metrics == both[1].metrics
    assert both[0].n == 9
    assert any(f"9 of {all_examples.n}" in note and how in note for note in both[0].notes)


@pytest.mark.parametrize(
    ("task", "words", "facts"),
    [
        ("classify", [], ["MODEL", "--data"]),
        ("classify", ["rows.txt"], ["rows.txt", "not a text"]),
        ("span", ["who"], ["span", "--data"]),
        ("choice", ["the dog"], ["choice", "--data"]),
        ("classify", ["--data", "rows.txt", "--out", "t/x.csv"], ["--out", "t/x.jsonl"]),
    ],
)
def test_invalid_options(
    task: str, words: list[str], facts: list[str], run_of: RunOf, firth_here: Firth
) -> None:
    Path("rows.txt").write_text("the red dog\n", encoding="utf-8")
    done = firth_here("predict", run_of(task), *words)
    assert done.returncode == 2
    assert all(fact in done.error for fact in facts)
    assert not Path("t").exists()


# The task, what is read, other options, and the end of each line of output.
PIPED: dict[str, tuple[str, str, list[str], list[str]]] = {
    "text": ("tag", "nora lives in paris.\nerik\n", [], ["nora lives in paris .", "erik"]),
    "columns": ("tag", "nora B-PER\nruns O\n\nrome B-LOC\n", [], ["nora runs", "rome"]),
    "words": ("tag", '{"words": ["nora", "runs"]}\n', [], ["nora runs"]),
    "rows of JSON": ("classify", '\n{"text": "the red dog"}\n', [], ["the red dog"]),
    "JSON that is text": ("classify", '{"text": "x"}\n', ["--format", "txt"], ['{"text": "x"}']),
    "braces": ("classify", "{sic} the red dog\n", [], ["{sic} the red dog"]),
    "nothing": ("classify", "", [], []),
}


@pytest.mark.parametrize("what", PIPED)
def test_the_format_of_standard_input_is_guessed(what: str, run_of: RunOf) -> None:
    task, text, options, ends = PIPED[what]
    done = in_process("predict", run_of(task), "--data", "-", *options, input=text)
    assert done.returncode == 0
    assert ("no examples" in done.stderr) == (not ends)
    assert [line.split("\t")[-1] for line in done.stdout.splitlines()] == ends


def test_json_lines_on_stdout(run_of: RunOf, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(GOOD + b"{\n" + GOOD)
    done = in_process("predict", run_of("classify"), "--data", file, "--out", "-")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line and line["label"] for line in lines] == ["x", None, "x"]
    assert done.returncode == 0
    file.write_text(json.dumps({"text": "the dog " * 500}))
    done = in_process("predict", run_of("classify"), "--data", file, "--out", "-")
    assert json.loads(done.stdout)["label"]
    assert "truncated" in done.stderr


# ---- on a terminal

SHOWN = {
    "classify": "%  ",
    "choice": "the dog → ",
    "tag": " PER]",
    "span": "who\n  ",
    "seq2seq": "the river\n  → ",
    "lm": "perplexity ",
}


@pytest.mark.parametrize("task", SHOWN)
def test_predictions_on_a_terminal(task: str, run_of: RunOf, task_files: dict[str, Files]) -> None:
    found = predict(run_of(task), data=task_files[task][1])
    shown = io.StringIO()
    Console(file=shown, width=300).print(*views.predictions(found), sep="\n")
    assert SHOWN[task] in shown.getvalue()
    if task == "span":
        assert f"[{found.answers[0]['answer']}]" in shown.getvalue()


def test_long_texts_are_shortened_on_a_terminal() -> None:
    long, answer = LabelledExample(text="very " * 100), {"label": "x", "score": 1.0}
    lines = list(map(str, views.predictions(PredictionResult("classify", [long], [answer], ["n"]))))
    assert lines == ["x 100%  " + "very " * 59 + "very…", "n"]


# ---- a loaded model


@pytest.mark.parametrize("task", ["classify", "tag", "seq2seq"])
def test_a_model_predicts_texts(run_of: RunOf, task: str) -> None:
    model, texts = load(run_of(task)), ["the red dog", "a green book"]
    answers = predict(model, texts=texts).answers
    assert model.predict(texts) == answers
    assert model.predict(texts[0]) == predict(model, texts=texts[0]).answers[0]


def test_what_a_model_does_not_predict(
    run_of: RunOf, models: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    model = load(run_of("classify"))
    assert model.predict(["the red dog", " "])[1] is None
    assert "text 2 is empty" in caplog.text
    with pytest.raises(FirthError):
        model.predict([float("nan")])  # type: ignore[list-item]
    with pytest.raises(MismatchError, match="not fine-tuned"):
        load(models["encoder"]).predict("the red dog")
    with pytest.raises(UsageError, match="more than one text"):
        load(run_of("pair")).predict("the red dog")
    assert model.predict([]) == []
    model.predict("the red dog " * 50)
    assert "1 of 1 examples" in caplog.text
