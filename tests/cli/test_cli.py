"""The command line: output, errors, exit codes, help."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from firth.cli import terminal
from firth.cli.app import app
from firth.cli.verbs import _print, verb
from firth.cli.views import filling
from firth.inference.infilling.fill_methods import FilledSentence, FillResult
from tests.conftest import SAMPLE, Result

Firth = Callable[..., Result]


@pytest.fixture
def bert(firth_here: Firth, sample: Path, tmp_path: Path) -> Path:
    train = ("tokenizer", "train", sample, "--kind", "wordpiece", "--vocab-size", 400)
    assert firth_here(*train, "--out", "bert").returncode == 0
    return tmp_path / "bert"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, contextlib; from firth.cli.app import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], check=True, capture_output=True, text=True
    )
    loaded = set(done.stderr.split())
    assert not loaded & {"torch", "numpy", "tokenizers", "pyarrow", "transformers"}


def commands() -> dict[str, Any]:
    """Every command by its name, as in `tokenizer train`."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found = {}
    for name, command in group.commands.items():
        parts = command.commands if isinstance(command, TyperGroup) else {"": command}
        found |= {f"{name} {part}".strip(): one for part, one in parts.items()}
    return found


def test_every_verb_has_json_debug_and_examples_and_explains_its_options(firth_here: Firth) -> None:
    for name, command in commands().items():
        text = firth_here(*name.split(), "--help").stdout
        assert "--json" in text, name
        assert "--debug" in text, name
        assert text.split("Examples:")[1].count("firth ") >= 2, name
        assert all(getattr(option, "help", "") for option in command.params), name


def test_the_examples_of_the_help_are_understood() -> None:
    for name, command in commands().items():
        for line in (command.epilog or "").split("\n\n")[1:]:
            words = shlex.split(line)[1 + len(name.split()) :]
            command.make_context(name, words).close()


def test_options_are_grouped(firth_here: Firth) -> None:
    for name in ("pretrain", "finetune"):
        text = firth_here(name, "--help").stdout
        for panel in ("Data", "Training", "Model", "Output", "Hub"):
            assert f"─ {panel} ─" in text


def test_version(firth: Firth) -> None:
    assert firth("--version").stdout == "firth 0.1.0\n"


def test_a_flag_takes_no_value(firth_here: Firth) -> None:
    for words in ([], ["tokenizer"], ["tokenizer", "train"]):
        assert "<bool>" not in firth_here(*words, "--help").stdout.lower()
    refused = firth_here("presets", "--json", "no", "yes")
    assert refused.returncode == 2


def test_train_and_show(firth_here: Firth, sample: Path) -> None:
    for kind, size in (("wordpiece", 400), ("bpe", 500)):
        options = ("--kind", kind, "--vocab-size", size, "--out", kind, "--json")
        values = firth_here("tokenizer", "train", sample, *options).json
        assert values["vocab_size"] == size
        assert (values["documents"], values["words"]) == (15, len(SAMPLE.split()))
    words = ("--text", "playing", "--text", "taaaaasty ☃")
    shown = firth_here("tokenizer", "show", "wordpiece", "bpe", *words)
    assert shown.returncode == 0
    assert shown.stderr == ""
    for expected in ("playing", "[UNK]", "wordpiece", "bpe", "tokens per word"):
        assert expected in shown.stdout
    values = firth_here("tokenizer", "show", "wordpiece", "bpe", *words, "--json").json
    first, second = values["tokenizers"]
    assert (first["unknown"], second["unknown"]) == (1, 0)
    assert first["texts"][0]["text"] == "playing"
    assert "".join(first["texts"][0]["tokens"]).replace("##", "") == "playing"
    assert first["fertility"] == first["tokens"] / 3


def test_a_tokenizer_is_described(firth_here: Firth, bert: Path) -> None:
    shown = firth_here("tokenizer", "show", bert)
    assert shown.returncode == 0, shown.stderr
    for expected in ("wordpiece", "400", "[CLS] TEXT A [SEP] TEXT B [SEP]", "hides a token"):
        assert expected in shown.stdout
    (values,) = firth_here("tokenizer", "show", bert, "--json").json["tokenizers"]
    assert (values["kind"], values["vocab_size"]) == ("wordpiece", 400)
    mask = next(one for one in values["special_tokens"] if one["role"] == "mask")
    assert (mask["token"], mask["id"]) == ("[MASK]", 4)
    assert values["counts"]["special tokens"] == 5
    assert "texts" not in values
    preset = firth_here("tokenizer", "show", "bert-base")
    assert preset.returncode == 1
    assert "30,522" in preset.error


def test_prepare_reports_and_reads_standard_input(firth_here: Firth, bert: Path) -> None:
    rows = "\n".join(json.dumps({"text": text}) for text in ("The sea.", "<b></b>", "A boat."))
    options = ("--tokenizer", bert, "--out", "shards", "--valid-fraction", 0)
    done = firth_here("prepare", "-", *options, input=rows)
    assert done.returncode == 0, done.stderr
    assert "removed: empty" in done.stdout
    assert "pieces of markup removed" in done.stdout
    assert "no validation split" in done.stdout


def test_errors_are_one_sentence_and_exit_with_1_or_2(
    firth_here: Firth, sample: Path, bert: Path, tmp_path: Path
) -> None:
    train = ("tokenizer", "train", "--out", "out", "--vocab-size", 400)
    missing = firth_here(*train, "nosuch.txt", "--kind", "bpe")
    assert missing.returncode == 1
    assert "nosuch.txt" in missing.error
    unknown = firth_here(*train, sample, "--kind", "words")
    assert unknown.returncode == 2
    assert "--kind words" in unknown.error
    assert firth_here(*train, sample, "--kind", "bpe", "--vocab-size", "many").returncode == 2
    assert firth_here("tokenizer", "train", sample).returncode == 2
    assert firth_here("nosuchverb").returncode == 2
    prepare = ("prepare", sample, "--tokenizer", bert)
    (tmp_path / "file").write_text("x")
    blocked = firth_here(*prepare, "--out", "file/shards")
    assert blocked.returncode == 1
    assert "file/shards" in blocked.error
    assert "--format doc" in firth_here(*prepare, "--out", "x", "--format", "doc").error
    strict = tmp_path / "latin.txt"
    strict.write_bytes("café".encode("latin-1"))
    named = firth_here(*prepare[:1], strict, *prepare[2:], "--out", "x", "--strict")
    assert named.returncode == 1
    assert "byte 3" in named.error
    assert "UTF-8" in named.error
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("verb", "option"),
    [("predict", "--data"), ("prompt", "--data"), ("fill", "--file"), ("generate", "--file")],
)
def test_the_name_of_a_missing_file_is_not_a_text(
    verb: str, option: str, firth_here: Firth
) -> None:
    for path in ("nosuch.tsv", "my notes.txt.gz", "data/reviews", "C:\\reviews"):
        refused = firth_here(verb, "no-model", path)
        assert refused.returncode == 2
        assert all(fact in refused.error for fact in (path, option, f"' {path}'"))
    for text in (" nosuch.tsv", "One and/or two.", "A [MASK]/dog"):
        assert "no-model" in firth_here(verb, "no-model", text).error


def test_a_traceback_only_with_debug(firth_here: Firth) -> None:
    plain = firth_here("tokenizer", "show", "nosuch", "--text", "x")
    debug = firth_here("tokenizer", "show", "nosuch", "--text", "x", "--debug")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr
    assert debug.returncode == plain.returncode == 1


def test_brackets_and_odd_terminals_do_no_harm(firth_here: Firth, bert: Path) -> None:
    shown = firth_here("tokenizer", "show", bert, "--text", "a [/red] [mask]")
    assert "a [/red] [mask]" in shown.stdout
    command = [sys.executable, "-m", "firth", "tokenizer", "show", str(bert), "--text"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for extra in ([], ["--json"]):
        done = subprocess.run([*command, "é", *extra], capture_output=True, env=ascii_only)
        assert done.returncode == 0
    invalid = subprocess.run([*map(str.encode, command), b"a\xffb"], capture_output=True)
    assert invalid.returncode == 0


def test_a_closed_pipe_ends_quietly(bert: Path) -> None:
    """`firth tokenizer show … | head -1`"""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "firth", "tokenizer", "show", str(bert)]
    process = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    os.close(reader)  # before the first line is written
    _, error = process.communicate(timeout=300)
    assert b"Traceback" not in error
    assert process.returncode != 0


def test_nothing_is_cut_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long = "word " * 60
    _print([terminal.new_table("path", "text", rows=[("p" * 90, long)]), long])
    lines = capsys.readouterr().out.splitlines()
    assert sum(long.strip() in line for line in lines) == 2
    assert any("p" * 90 in line for line in lines)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ZeroDivisionError("division by zero"), "Unexpected ZeroDivisionError: division by zero."),
        (MemoryError("9 GiB are needed"), "Out of memory (9 GiB are needed): use a smaller model"),
    ],
)
def test_an_unexpected_error_is_one_sentence(
    capsys: pytest.CaptureFixture[str], error: Exception, message: str
) -> None:
    scratch = typer.Typer()

    @verb(scratch, "broken")
    def broken() -> None:  # type: ignore[misc]
        """Fail."""
        raise error

    with pytest.raises(SystemExit) as stopped:
        scratch([])
    assert stopped.value.code == 1
    assert f"firth: {message}" in capsys.readouterr().err
    assert app.registered_commands, "the real application is untouched"


def test_after_the_failure_of_a_gpu_the_process_ends_at_once() -> None:
    """Without freeing its memory, which would abort the process."""
    code = (
        "import atexit, typer; from firth.cli.verbs import verb; "
        "from firth.utils.errors import DeviceError\n"
        "scratch = typer.Typer(); atexit.register(print, 'freed')\n"
        "@verb(scratch, 'broken')\n"
        "def broken() -> None:\n"
        "    raise DeviceError('The GPU failed.')\n"
        "scratch([])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "firth: The GPU failed.\n")


def test_a_progress_bar_on_a_terminal_only(firth_here: Firth, sample: Path, tmp_path: Path) -> None:
    options = [
        "--kind",
        "bpe",
        "--vocab-size",
        "300",
        "--overwrite",
        "--out",
        str(tmp_path / "out"),
    ]
    command = [sys.executable, "-m", "firth", "tokenizer", "train", str(sample), *options]
    master, slave = pty.openpty()
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert "counting words" in shown
    assert "100%" in shown
    assert firth_here(*command[3:]).stderr == ""


STEP = {"step": 5, "loss": 2.0, "progress": 0.5}
VALIDATION = {
    "step": 5,
    "tokens": 99,
    "loss": 1.25,
    "accuracy": 0.5,
    "samples": ["The dog barked."],
}
NOTE = "A note that is longer than one line of a terminal. " * 4


def report_run(**named: str) -> None:
    with terminal.training() as callback:
        callback("step", STEP | named)
        callback("validating", named)
        callback("validation", VALIDATION | named)
        callback("note", {"note": NOTE} | named)


def test_a_terminal_shows_validations(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        report_run()
        screen.flush()
        parts = []
        while select.select([master], [], [], 0.5)[0]:  # a terminal returns what it has so far
            parts.append(os.read(master, 100_000))
    os.close(master)
    shown = b"".join(parts).decode()
    assert "validating" in shown
    assert "The dog barked." in shown


def test_a_log_has_a_line_for_each_validation_and_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report_run()
    said = capsys.readouterr()
    line = " 50% after 0.0 min  step 5  validation  loss 1.250  accuracy 0.500"
    assert (said.out, said.err.splitlines()) == ("", [line, NOTE])
    report_run(run="lora")
    assert capsys.readouterr().err.splitlines() == [f"lora: {line}", f"lora: {NOTE}"]


def test_the_note_on_rewritten_texts_is_last() -> None:
    found = FillResult("A ___ and ___.", [[], []], [FilledSentence([], 0.5, "Another text.")])
    assert filling.filled(found)[-1] == filling.REWRITTEN
