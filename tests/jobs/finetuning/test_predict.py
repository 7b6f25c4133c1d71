"""Answers for a stream: as they come, in bounded memory, with bad rows passed over."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from firth.cli.app import app
from firth.cli.views import predictions as answer_views
from firth.jobs.finetuning import finetune
from firth.jobs.prediction import PredictionResult, predict, predicting
from firth.utils.errors import InputError
from firth.utils.files import growing_file, partial_path
from firth.utils.streams import MAX_LEADING_ERRORS, bounded_batches, interleave_errors
from tests.jobs.finetuning.toys import TINY, TOYS, coloured, table


@pytest.fixture(scope="module")
def run_of(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A run of each task, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("runs")
    row = {"text": "the dog", "choices": ["barked", "sang a song"], "label": 0}
    (folder / "choices.jsonl").write_text((json.dumps(row) + "\n") * 8, encoding="utf-8")
    (folder / "text.txt").write_text("The dog ran.\n\nThe river rose.\n", encoding="utf-8")
    others = {"choice": (folder / "choices.jsonl",) * 2, "lm": (folder / "text.txt",) * 2}
    kinds = {"seq2seq": "encoder-decoder", "lm": "decoder"}

    def make(task: str) -> Path:
        if not (folder / task).exists():
            train, dev = others[task] if task in others else TOYS[task](folder)
            overrides = TINY | {"steps": 40, "learning_rate": "1e-2"}
            model = models[kinds.get(task, "encoder")]
            finetune(model, task=task, train=train, dev=dev, out=folder / task, overrides=overrides)
        return folder / task

    return make


def firth(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


# ---- rows that are bad --------------------------------------------------------------------------

GOOD = b'{"text": "the red dog"}\n'
BAD: dict[str, tuple[str, str, bytes, dict[int, str], int]] = {
    # what: task, name of the file, its bytes, what is said of which row, how many are answered
    "json": (
        "classify",
        "rows.jsonl",
        GOOD + b"{oops\n[1]\n" + GOOD + b'{"texts": "x"}\n{"text": 7}\n{"text": "\xff"}\n' + GOOD,
        {
            1: "rows.jsonl line 2 is not JSON: Expecting property name enclosed in double quotes.",
            2: "rows.jsonl line 3 is not a JSON object but list.",
            4: "rows.jsonl line 5 has no field 'text', which earlier rows have.",
            5: "rows.jsonl line 6: 'text' is not text but int (7).",
            6: "rows.jsonl line 7: byte 95 of the file is not UTF-8; convert it with iconv.",
        },
        3,
    ),
    "the first row lacks the column": (
        "classify",
        "rows.jsonl",
        b'{"other": "x"}\n' + GOOD,
        {0: "rows.jsonl line 1 has no column 'text' (it has 'other'); rename one, or choose wit"},
        1,
    ),
    "tsv": (
        "classify",
        "rows.tsv",
        b"text\tlabel\nthe red dog\tx\nthe green dog\nthe \xe9\tx\nthe green dog\tnever seen\n",
        {
            1: "rows.tsv line 3: 1 fields where the header has 2; a field of a TSV file holds no",
            2: "rows.tsv line 4: byte 43 of the file is not UTF-8; convert it with iconv.",
        },
        2,
    ),
    "csv": (
        "classify",
        "rows.csv",
        b'text,label\n"the \xe9\nred",x\n"a" dog,x\nthe red dog,x\n',
        {
            0: "rows.csv line 2: byte 16 of the file is not UTF-8; convert it with iconv.",
            1: "rows.csv line 4: ',' expected after '\"'.",
        },
        1,
    ),
    "lines": (
        "classify",
        "rows.txt",
        b"the red dog\n\n\xff\xf0\nthe green dog\n \t\n",
        {
            1: "rows.txt line 2 is empty: there is no text to predict",
            2: "rows.txt line 3: byte 13 of the file is not UTF-8; convert it with iconv.",
            4: "rows.txt line 5 is empty: there is no text to predict",
        },
        2,
    ),
    "an empty field": (
        "seq2seq",
        "rows.tsv",
        b"source\ttarget\nthe dog\tx\n \tx\nthe river\t\n",
        {1: "rows.tsv line 3 is empty: there is no text to predict"},
        2,
    ),
    "words": (
        "tag",
        "rows.jsonl",
        b'{"words": ["erik", "ran"]}\n{"words": "erik"}\n{"words": ["a", ""]}\n{"words": ["a"]}\n'
        b'{"words": []}\n',
        {
            1: "rows.jsonl line 2: 'words' is not a list but str.",
            2: "rows.jsonl line 3: a word is empty.",
            4: "rows.jsonl line 5 is empty: there is no text to predict",
        },
        2,
    ),
    "questions": (
        "span",
        "rows.jsonl",
        b'{"question": "who", "context": "erik ran", "answers": [{"text": "no such"}]}\n'
        b'{"question": "who"}\n{"question": "who", "context": "daisy ran", "id": 1}\n'
        b'{"question": "who", "context": "daisy ran", "id": 1}\n',
        {1: "rows.jsonl line 2 has no 'context' (it has 'question')."},
        3,
    ),
    "an article": (
        "span",
        "rows.json",
        json.dumps(
            {
                "data": [
                    {
                        "paragraphs": [
                            {"context": "erik ran", "qas": [{"question": "who"}, {"id": "b"}]},
                            {"qas": []},
                            {"context": "daisy ran", "qas": [{"question": "who"}]},
                        ]
                    }
                ]
            }
        ).encode(),
        {
            1: "rows.json question 2 (id b) has no 'question' (it has 'id').",
            2: "rows.json article 1, paragraph 2 has no 'context' (it has 'qas').",
        },
        2,
    ),
    "choices": (
        "choice",
        "rows.jsonl",
        b'{"text": "the dog", "choices": ["barked", "sang"], "label": "howled"}\n'
        b'{"text": "the dog", "choices": ["barked"]}\n',
        {1: "rows.jsonl line 2: a choice is empty, or there are fewer than two."},
        1,
    ),
    "sources": (
        "seq2seq",
        "rows.jsonl",
        b'{"source": "the dog"}\n{"target": "dog"}\n{"source": "the river", "target": 3}\n',
        {1: "rows.jsonl line 2 has no field 'source', which earlier rows have."},
        2,
    ),
    "passages": (
        "lm",
        "rows.jsonl",
        b'{"text": "The dog ran."}\n{"text": [{"role": "user"}]}\n{"text": "The river"}\n',
        {1: "rows.jsonl line 2, turn 1 of 'text' has no 'content'."},
        2,
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_is_told_and_the_others_are_answered(
    what: str, run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, name, content, wrong, answered = BAD[what]
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    run = run_of(task)
    done = firth("predict", run, "--data", name, "--out", "answers.jsonl")
    assert done.exit_code == 1
    *told, last = done.stderr.splitlines()
    assert [line[: len(said)] for line, said in zip(told, wrong.values(), strict=True)] == list(
        wrong.values()
    )
    count = "1 row was" if len(wrong) == 1 else f"{len(wrong)} rows were"
    assert last.startswith(f"firth: {count} bad ")
    lines = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert {place for place, line in enumerate(lines) if "error" in line} == set(wrong)
    assert sum("error" not in line for line in lines) == answered
    found = firth("predict", run, "--data", name, "--json")
    assert found.exit_code == 1
    said = json.loads(found.stdout)
    assert said["bad"] == len(wrong)
    assert said["predictions"] == lines
    with pytest.raises(InputError) as error:  # in Python, a list is whole or not there
        predict(run, data=name)
    assert str(error.value).startswith(next(iter(wrong.values())))


def test_many_bad_rows_are_counted(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_bytes(GOOD + b"{\n" * 50 + GOOD)
    done = firth("predict", run_of("classify"), "--data", "rows.jsonl")
    assert [bool(line) for line in done.stdout.splitlines()] == [True, *[False] * 50, True]
    assert len(done.stderr.splitlines()) == 21
    assert "50 rows were bad (the first 20" in done.stderr


@pytest.mark.parametrize("rows", [3, MAX_LEADING_ERRORS + 50])
def test_a_file_of_bad_rows_is_refused_in_one_sentence(
    rows: int, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    file, out = table(tmp_path / "rows.tsv", "a b", [("x", "y")] * rows), tmp_path / "out.jsonl"
    done = firth("predict", run_of("classify"), "--data", file, "--out", out, "--json")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"firth: {file} line 1 has no column 'text' (it has 'a', 'b');")
    assert not out.exists()
    assert not partial_path(out).exists()


def test_an_open_quotation_mark_ends_the_file(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """It hides how many rows are lost, so nobody goes on behind it."""
    file, out = tmp_path / "rows.csv", tmp_path / "out.jsonl"
    file.write_text('text\nthe red dog\n"the green\ndog\n', encoding="utf-8")
    done = firth("predict", run_of("classify"), "--data", file, "--out", out)
    assert done.exit_code == 1
    assert "line 4: unexpected end of data." in done.stderr
    assert not out.exists()


def test_labels_are_not_looked_at(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    rows = [("the red dog", "never seen"), ("the green dog", "")]
    found = predict(run_of("classify"), data=table(tmp_path / "rows.tsv", "text label", rows))
    assert [answer["label"] for answer in found.answers] == ["x", "y"]
    tagged = tmp_path / "rows.conll"
    tagged.write_text("erik B-NEVER\nran odd\n\ndaisy O\n", encoding="utf-8")
    assert len(predict(run_of("tag"), data=tagged).answers) == 2


# ---- texts, and what a pipe holds ---------------------------------------------------------------


def test_texts_may_be_given(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    texts = ["the red dog", "the green dog"]
    done = firth("predict", run_of("classify"), *texts, "--json")
    assert done.exit_code == 0
    said = json.loads(done.stdout)["predictions"]
    assert [answer["label"] for answer in said] == ["x", "y"]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    assert said == predict(run_of("classify"), data=file).answers
    assert said == predict(run_of("classify"), texts=texts).answers
    tagged = predict(run_of("tag"), texts=["erik's dog, paris."]).answers
    assert tagged[0]["words"] == ["erik", "'s", "dog", ",", "paris", "."]
    for task in ("lm", "seq2seq"):
        assert len(predict(run_of(task), texts=texts).answers) == 2


def test_a_text_that_is_empty_is_told(run_of: Callable[[str], Path]) -> None:
    done = firth("predict", run_of("classify"), "the red dog", "", "the green dog")
    assert done.exit_code == 1
    assert done.stderr.startswith("text 2 is empty")
    assert [line[:1] for line in done.stdout.splitlines()] == ["x", "", "y"]


@pytest.mark.parametrize(
    ("task", "words", "sentence"),
    [
        ("classify", [], "Give texts after MODEL, or a file of examples with --data."),
        ("classify", ["rows.txt"], "rows.txt is a file or folder, not a text"),
        ("span", ["who"], "The input of span is more than one text: give a file with --data."),
        ("choice", ["the dog"], "The input of choice is more than one text"),
        (
            "classify",
            ["--data", "rows.txt", "--out", "t/x.csv"],
            "--out writes JSON lines: name the file t/x.jsonl, not t/x.csv.",
        ),
    ],
)
def test_what_predict_cannot_be_asked(
    task: str,
    words: list[str],
    sentence: str,
    run_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.txt").write_text("the red dog\n", encoding="utf-8")
    done = firth("predict", run_of(task), *words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"firth: {sentence}")
    assert done.stderr.count("\n") == 1
    assert not Path("t").exists()


PIPED = {
    # what: task, what is written, what is asked besides, what each line of answers ends with
    "text": ("tag", "nora lives in paris.\nerik\n", [], ["nora lives in paris .", "erik"]),
    "columns": ("tag", "nora B-PER\nruns O\n\nrome B-LOC\n", [], ["nora runs", "rome"]),
    "words": ("tag", '{"words": ["nora", "runs"]}\n', [], ["nora runs"]),
    "rows of JSON": ("classify", '\n{"text": "the red dog"}\n', [], ["the red dog"]),
    "JSON that is text": ("classify", '{"text": "x"}\n', ["--format", "txt"], ['{"text": "x"}']),
    "braces": ("classify", "{sic} the red dog\n", [], ["{sic} the red dog"]),
    "nothing": ("classify", "", [], []),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", PIPED)
def test_what_a_pipe_holds(what: str, run_of: Callable[[str], Path]) -> None:
    task, text, options, ends = PIPED[what]
    process = popen("predict", run_of(task), "--data", "-", *options)
    found, error = process.communicate(text.encode(), timeout=300)
    assert process.returncode == 0
    assert error == (b"" if ends else b"There are no examples.\n")
    assert [line.split("\t")[-1] for line in found.decode().splitlines()] == ends


def test_text_for_a_tagger_is_answered_as_it_is_written(run_of: Callable[[str], Path]) -> None:
    process = popen("predict", run_of("tag"), "--data", "-")
    assert process.stdin is not None
    assert process.stdout is not None
    for text in (b"nora lives in paris.", b"erik"):
        process.stdin.write(text + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(text.replace(b".", b" .") + b"\n")
    process.communicate(timeout=300)


# ---- a stream -----------------------------------------------------------------------------------


def test_a_stream_says_what_a_list_says(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Several windows of some examples each give the same answers in the same order."""
    _, dev = coloured(tmp_path, counts=(2, 2500))
    whole = predict(run_of("classify"), data=dev)
    stream = predicting(run_of("classify"), data=dev)
    first = list(islice(stream, 5))
    assert stream.done == 5
    found = [*first, *stream]
    assert [row.answer for row in found] == whole.answers
    assert [row.example for row in found] == whole.examples
    assert [row.example.line for row in found] == list(range(2, 2502))
    alone = [predict(run_of("classify"), data=one(tmp_path, row.example.text)) for row in first]
    for row, own in zip(first, alone, strict=True):
        assert row.answer["scores"] == pytest.approx(own.answers[0]["scores"], abs=1e-5)


def one(folder: Path, text: str) -> Path:
    file = folder / "one.txt"
    file.write_text(text, encoding="utf-8")
    return file


def test_memory_does_not_grow_with_the_file(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    peaks = []
    for count in (50, 3500, 8000):  # the first warms up
        file = tmp_path / f"{count}.jsonl"
        file.write_bytes(GOOD * count)
        stream = predicting(run_of("classify"), data=file)
        next(stream)
        tracemalloc.start()
        assert sum(1 for _ in stream) == count - 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[1]


def popen(*words: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "firth", *map(str, words)]
    return subprocess.Popen(
        command,
        stdin=-1,
        stdout=-1,
        stderr=-1,
        # A background job inherits that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def test_a_pipe_is_answered_while_it_is_open(run_of: Callable[[str], Path]) -> None:
    process = popen("predict", run_of("classify"), "--data", "-", "--format", "jsonl")
    assert process.stdin is not None
    assert process.stdout is not None
    for colour, label in (("red", b"x"), ("green", b"y")):
        process.stdin.write(json.dumps({"text": f"the {colour} dog"}).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(
            label + b"\t"
        )  # before anything else is written
    rest, error = process.communicate(timeout=300)
    assert (rest, error, process.returncode) == (b"", b"", 0)


def test_an_interrupt_leaves_whole_lines(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    process = popen("predict", run_of("classify"), "--data", "-", "--format", "jsonl", "--out", out)
    assert process.stdin is not None
    process.stdin.write(GOOD * 300)
    process.stdin.flush()
    while process.poll() is None and (
        not partial_path(out).exists() or partial_path(out).read_bytes().count(b"\n") < 300
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    expected = f"firth: Interrupted. The 300 answers before that are in {partial_path(out)}.\n"
    assert error.decode() == expected
    assert not out.exists()
    lines = partial_path(out).read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == ["x"] * 300


def test_lines_for_a_pipe(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(GOOD + b"{\n" + GOOD)
    done = firth("predict", run_of("classify"), "--data", file, "--out", "-")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("label") for line in lines] == ["x", None, "x"]
    assert "error" in lines[1]
    assert done.exit_code == 1


def test_a_reader_that_has_enough(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    """`firth predict … | head -1` ends quietly."""
    file = tmp_path / "rows.jsonl"
    file.write_bytes(GOOD * 4000)
    reader, writer = os.pipe()
    command = [
        sys.executable,
        "-m",
        "firth",
        "predict",
        str(run_of("classify")),
        "--data",
        str(file),
    ]
    process = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert os.read(reader, 2) == b"x\t"
    os.close(reader)
    _, error = process.communicate(timeout=300)
    assert b"Traceback" not in error
    assert process.returncode != 0


# ---- what people see ----------------------------------------------------------------------------

DRAWN = {
    "classify": "x 100%  ",
    "choice": "the dog → ",
    "tag": " PER]",
    "span": "who\n  ",
    "seq2seq": "the river\n  → ",
    "lm": "perplexity ",
}


@pytest.mark.parametrize("task", DRAWN)
def test_answers_on_a_terminal(task: str, run_of: Callable[[str], Path]) -> None:
    run = run_of(task)
    files = {"tag": "names-dev.conll", "span": "who-dev.json", "seq2seq": "copies-dev.tsv"}
    files |= {"classify": "colours-dev.tsv", "choice": "choices.jsonl", "lm": "text.txt"}
    found = predict(run, data=run.parent / files[task])
    shown = io.StringIO()
    Console(file=shown, width=300).print(*answer_views.predictions(found), sep="\n")
    assert DRAWN[task] in shown.getvalue()
    if task == "span":
        assert f"[{found.answers[0]['answer']}]" in shown.getvalue()


def test_a_long_text_is_shown_shortened() -> None:
    from firth.tasks.readers.examples import LabelledExample

    answer = {"label": "x", "score": 1.0}
    found = PredictionResult(
        "classify", [LabelledExample(text="very " * 100)], [answer], ["A note."]
    )
    lines = [str(part) for part in answer_views.predictions(found)]
    assert lines == ["x 100%  " + "very " * 59 + "very…", "A note."]


# ---- windows and files --------------------------------------------------------------------------


def test_windows_hold_so_many_and_so_much() -> None:
    assert list(bounded_batches("abcde", len, max_items=2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(bounded_batches(["aaa", "b"], len, max_size=1)) == [["aaa"], ["b"]]
    assert list(bounded_batches([], len)) == []


def test_a_live_stream_in_order_with_its_error() -> None:
    def read() -> Any:
        yield from range(2000)
        raise InputError("The pipe broke.")

    found = []
    with pytest.raises(InputError, match="The pipe broke"):
        for window in bounded_batches(read(), lambda item: 1, max_items=16, live=True):
            assert len(window) <= 16
            found += window
    assert found == list(range(len(found)))
    assert len(found) >= 2000 - 16


def test_endless_bad_rows_are_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firth.utils.streams.MAX_CONSECUTIVE_ERRORS", 5)

    def read(tell: Callable[[InputError], None]) -> Any:
        yield 0
        for number in range(100):
            tell(InputError(f"Row {number} is bad."))

    with pytest.raises(InputError, match=r"Row 0 is bad\."):
        list(interleave_errors(read))


def test_a_file_that_grows_is_cut_behind_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    with pytest.raises(ValueError, match="enough"), growing_file(path) as write:
        write("one")
        with partial_path(path).open("ab") as file:
            file.write(b"half a li")  # as an interrupted write leaves it
        raise ValueError("enough")
    assert partial_path(path).read_text() == "one\n"
    assert not path.exists()
