"""`embed_file`: every format, interrupted and resumed runs, and bad rows."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from firth import InputError, MismatchError, ReadOptions, UsageError, load
from firth.data.readers import MAX_CHARS
from firth.inference.embedding import embed_file as embed_module
from firth.inference.embedding import vectors
from firth.inference.embedding.embed_file import embed_file
from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.vectors import encode_texts
from tests.inference.conftest import TEXTS, MakeModel

Verb = Callable[..., Any]


@pytest.fixture
def embedder(bert: Path) -> Embedder:
    return load(bert).embedder()


@pytest.fixture
def in_threes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use chunks of three rows, each with a journal entry."""
    monkeypatch.setattr(vectors, "CHUNK_ROWS", 3)
    monkeypatch.setattr(embed_module, "COMMIT_INTERVAL", 0.0)


# --- formats


def saved(vectors: Any) -> bytes:
    """Return the bytes that `np.save` writes."""
    file = io.BytesIO()
    np.save(file, vectors)
    return file.getvalue()


def written(texts: list[str]) -> dict[str, bytes]:
    """Return the same rows in every format."""
    table, tsv, csv = io.BytesIO(), "id\ttext\n", "id,text\n"
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), table)
    tsv += "".join(f"{i}\t{text}\n" for i, text in enumerate(texts))
    csv += "".join(f'{i},"{text.replace(chr(34), chr(34) * 2)}"\n' for i, text in enumerate(texts))
    jsonl = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    plain = "\n".join(texts).encode()
    return {
        "txt": plain,
        "txt.gz": gzip.compress(plain + b"\n"),
        "jsonl": jsonl,
        "jsonl.xz": lzma.compress(jsonl),
        "tsv": tsv.encode(),
        "csv": csv.encode(),
        "parquet": table.getvalue(),
        "parquet.gz": gzip.compress(table.getvalue()),
    }


@pytest.mark.parametrize("ending", written([]))
def test_every_format_gives_the_same_rows(embedder: Embedder, tmp_path: Path, ending: str) -> None:
    texts = [*TEXTS[:4], "", *TEXTS[4:]]
    (tmp_path / f"texts.{ending}").write_bytes(written(texts)[ending])
    made = embed_file(embedder, tmp_path / f"texts.{ending}", tmp_path / "vectors.npy")
    assert (made.rows, made.dimension, made.resumed) == (len(texts), 32, 0)
    assert made.faults == {"bad": {"count": 1, "first": 5}}
    wanted = vectors.embed(embedder, texts)
    wanted[4] = np.nan
    assert (tmp_path / "vectors.npy").read_bytes() == saved(wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bert",
        f"texts.{ending}",
        "vectors.npy",
    ]


def test_every_output_holds_the_same_vectors(embedder: Embedder, lines: Path) -> None:
    wanted = vectors.embed(embedder, TEXTS)
    for ending in (".npy", ".jsonl", ".parquet"):
        embed_file(embedder, lines, lines.with_suffix(ending))
    assert np.array_equal(np.load(lines.with_suffix(".npy")), wanted)
    rows = [json.loads(line) for line in lines.with_suffix(".jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    assert np.array_equal(np.array([row["vector"] for row in rows], np.float32), wanted)
    table = pq.read_table(lines.with_suffix(".parquet"))
    assert table.column("text").to_pylist() == TEXTS
    assert np.array_equal(np.array(table.column("vector").to_pylist(), np.float32), wanted)
    assert table.schema.field("vector").type.value_type == pa.float32()


# --- interrupted


class PowerFailure(BaseException):
    """Ends a run in this process as a power failure would."""


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    calls = iter(range(100))

    def broken(embedder: Embedder, texts: Any) -> Any:
        if next(calls) == number:
            raise error
        return encode_texts(embedder, texts)

    monkeypatch.setattr(embed_module, "encode_texts", broken)


def partly(out: Path) -> list[Any]:
    """Read the vectors of a partial file."""
    folder = out.with_name(out.name + ".partial")
    if out.suffix == ".npy":
        return np.load(folder / out.name).tolist()
    if out.suffix == ".jsonl":
        read = (folder / out.name).read_text().splitlines()
        return [json.loads(line)["vector"] for line in read]
    parts = pa.concat_tables(pq.read_table(part) for part in sorted(folder.glob("part-*.parquet")))
    return parts.column("vector").to_pylist()


@pytest.mark.usefixtures("in_threes")
@pytest.mark.parametrize("ending", [".npy", ".jsonl", ".parquet"])
@pytest.mark.parametrize("pause", [0.0, 100.0])
def test_resumed_equals_uninterrupted(
    embedder: Embedder, lines: Path, ending: str, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = lines.with_name(f"whole{ending}"), lines.with_name(f"out{ending}")
    embed_file(embedder, lines, whole)
    monkeypatch.setattr(embed_module, "COMMIT_INTERVAL", pause)
    wanted = vectors.embed(embedder, TEXTS)
    for number, error, there in ((2, KeyboardInterrupt(), 6), (1, PowerFailure(), 9)):
        fail_at(monkeypatch, number, error)
        with pytest.raises(type(error)):
            embed_file(embedder, lines, out)
        assert not out.exists()
        np.testing.assert_allclose(partly(out), wanted[:there], rtol=1e-6)
    monkeypatch.setattr(embed_module, "encode_texts", encode_texts)
    made = embed_file(embedder, lines, out)
    assert (made.resumed, made.rows) == (9, len(TEXTS))
    assert out.read_bytes() == whole.read_bytes()
    assert not list(lines.parent.glob("*.partial"))


KILLED = """
import os, sys
from firth import load
from firth.inference.embedding import embed_file, vectors
vectors.CHUNK_ROWS, embed_file.COMMIT_INTERVAL = 3, 0.0
write_json, (model, texts, whole, out) = embed_file.write_json, sys.argv[1:]
for place, commit, code in ((whole, 99, 0), (out, 2, 9), (out, 99, 0)):
    calls = iter(range(100))
    def dying(path, value):
        if next(calls) == commit:
            os._exit(9)  # the file has rows that the journal does not count
        write_json(path, value)
    embed_file.write_json = dying
    child = os.fork()
    if not child:
        embed_file.embed_file(load(model).embedder(), texts, place)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    if code:
        os.system(f"cp -r {out}.partial {out}.killed")
"""


@pytest.mark.nightly
def test_killed_between_rows_and_journal(bert: Path, lines: Path) -> None:
    """All runs are children of one process, so that they use the same kernels."""
    whole, out = lines.with_name("whole.npy"), lines.with_name("out.npy")
    command = [sys.executable, "-c", KILLED, *map(str, (bert, lines, whole, out))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    killed = out.with_name("out.npy.killed")
    assert len(np.load(killed / "out.npy")) == 9
    assert json.loads((killed / embed_module.JOURNAL).read_text())["rows"] == 6
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("words", ["embed {} texts.txt --out out.npy", "search {} texts.txt sea"])
def test_an_interrupted_command_can_be_repeated(
    words: str,
    verb: Verb,
    bert: Path,
    lines: Path,
    in_threes: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = "out.npy" if words.startswith("embed") else "texts.txt.index"
    command = words.format(bert).split()
    with monkeypatch.context() as patch:
        fail_at(patch, 2, KeyboardInterrupt())
        done = verb(*command)
    assert done.exit_code == 130
    assert f"{made}.partial" in done.stderr
    assert done.stderr.count("\n") == 1
    encoded: list[str] = []
    monkeypatch.setattr(
        embed_module,
        "encode_texts",
        lambda embedder, texts: (encoded.extend(texts), encode_texts(embedder, texts))[1],
    )
    again = verb(*command, "--json")
    assert again.exit_code == 0, again.output
    assert encoded == TEXTS[6:]
    assert Path(made).exists()
    assert json.loads(again.stdout).get("resumed", 6) == 6


def test_an_interrupt_without_saved_rows(
    verb: Verb, bert: Path, lines: Path, in_threes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first rows there is nothing to resume, and a pipe cannot be read again."""
    with monkeypatch.context() as patch:
        fail_at(patch, 0, KeyboardInterrupt())
        first = verb("embed", bert, lines, "--out", "out.npy").stderr
    os.mkfifo("pipe.txt")
    writer = os.open("pipe.txt", os.O_RDWR)  # not to wait for the reader
    os.write(writer, lines.read_bytes())
    fail_at(monkeypatch, 2, KeyboardInterrupt())
    second = verb("embed", bert, "pipe.txt", "--out", "out.npy").stderr
    os.close(writer)
    for message in (first, second):
        assert message.startswith("firth: Interrupted")
        assert ".partial" not in message


@pytest.fixture
def interrupted(
    embedder: Embedder, lines: Path, in_threes: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The output of a run that was interrupted after six rows."""
    out = lines.with_name("out.npy")
    with monkeypatch.context() as patch:
        fail_at(patch, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            embed_file(embedder, lines, out)
    return out


def test_only_the_same_run_is_resumed(
    embedder: Embedder, make_model: MakeModel, lines: Path, interrupted: Path
) -> None:
    out = interrupted
    other = make_model("bert-tiny", seed=4).embedder()
    half = replace(embedder, use_bf16=True)
    shorter, first = replace(embedder, max_length=9), replace(embedder, pooling=("cls",))
    for changed in (first, shorter, half, other):
        with pytest.raises(MismatchError, match=r"\.partial .*--out"):
            embed_file(changed, lines, out)
    os.utime(lines, ns=(1, 1))
    with pytest.raises(MismatchError) as refused:
        embed_file(embedder, lines, out)
    assert f"{out}.partial" in str(refused.value)
    assert len(partly(out)) == 6


def test_damaged_partial_files_are_rebuilt(
    embedder: Embedder, lines: Path, interrupted: Path
) -> None:
    os.truncate(interrupted.with_name("out.npy.partial") / "out.npy", 200)
    made = embed_file(embedder, lines, interrupted)
    np.testing.assert_allclose(np.load(interrupted), vectors.embed(embedder, TEXTS), atol=1e-6)
    assert made.rows == len(TEXTS)


def test_a_file_that_changes_during_the_run(
    embedder: Embedder, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(embedder: Embedder, texts: Any) -> Any:
        os.utime(lines, ns=(5, 5))
        return encode_texts(embedder, texts)

    monkeypatch.setattr(embed_module, "encode_texts", slow)
    with pytest.raises(InputError, match=r"texts\.txt changed"):
        embed_file(embedder, lines, lines.with_name("out.npy"))
    assert not list(lines.parent.glob("out*"))


# --- rows that are not as they should be


def test_bad_rows_are_reported_and_others_finish(embedder: Embedder, tmp_path: Path) -> None:
    rows = [b"The sea", b"", b"caf\xe9", b"far " * 100, b"a boat", b"  ", b"no end"]
    (tmp_path / "bad.txt").write_bytes(b"\r\n".join(rows))
    with torch.no_grad():
        token = embedder.tokenizer.encode("boat")[0]
        embedder.network.tokens.weight[token] = float("inf")
    made = embed_file(embedder, tmp_path / "bad.txt", tmp_path / "bad.npy")
    assert made.rows == len(rows)
    assert made.faults == {
        "bad": {"count": 3, "first": 2},
        "cut": {"count": 1, "first": 4},
        "not_finite": {"count": 1, "first": 5},
    }
    vectors = np.load(tmp_path / "bad.npy")
    finite = [True, False, False, True, False, False, True]
    assert np.isfinite(vectors).all(axis=1).tolist() == finite
    for line, note in zip((2, 3, 6), made.notes, strict=False):
        assert f"line {line}" in note
    embed_file(embedder, tmp_path / "bad.txt", tmp_path / "bad.jsonl")
    read = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [row["vector"] is not None for row in read] == finite


def test_a_line_longer_than_any_document_is_one_row(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("x" * (MAX_CHARS + 100) + "\nboat\n")
    made = embed_file(embedder, tmp_path / "long.txt", tmp_path / "long.npy")
    assert made.rows == 2


# --- the command line


def test_the_verb(verb: Verb, bert: Path, lines: Path) -> None:
    done = verb("embed", bert, lines, "--out", "out.npy")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "11 vectors of dimension 32 are in out.npy" in done.stdout
    model = load(bert)
    np.testing.assert_array_equal(np.load(lines.with_name("out.npy")), model.embed(TEXTS))
    options = ("--pooling", "cls+max", "--layers", "1,-1", "--normalize", "--batch-tokens", 50)
    words = ("embed", bert, "-", "--out", "two.npy", "--json", *options)
    found = json.loads(verb(*words, input="\n".join([*TEXTS, ""])).stdout)
    assert (found["rows"], found["dimension"], found["out"]) == (11, 64, "two.npy")
    wanted = model.embed(TEXTS, pooling="cls+max", layer=[1, 2], normalize=True)
    np.testing.assert_allclose(np.load(lines.with_name("two.npy")), wanted, atol=1e-5)
    assert found["precision"] == "fp32"
    rows = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    assert verb("embed", bert, "-", "--out", "three.npy", input=rows).exit_code == 0
    found = np.load(lines.with_name("three.npy"))
    np.testing.assert_allclose(found, model.embed(TEXTS), atol=1e-6)
    load(bert).save("half", dtype=torch.bfloat16)
    for precision in ("fp32", "force-bf16"):
        options = ("--out", f"{precision}.npy", "--precision", precision, "--json")
        shown = json.loads(verb("embed", "half", lines, *options).stdout)
        assert shown["precision"] == precision.removeprefix("force-")
        wanted = load("half", dtype="float32").embed(TEXTS, precision=precision)
        np.testing.assert_allclose(np.load(f"{precision}.npy"), wanted, atol=1e-5)
    assert np.abs(np.load("fp32.npy") - np.load("force-bf16.npy")).max() > 1e-5


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        ("nosuch.txt --out x.npy", 1, "nosuch.txt"),
        ("rows.jsonl --out x.npy", 1, "rows.jsonl line 1"),
        ("texts.txt --out x.csv", 2, "x.csv"),
        ("texts.txt --out bert", 2, "--out bert"),
        ("texts.txt --out x.npy --layers 1,b", 2, "--layers"),
        ("texts.txt --out x.npy --layers 1 --layer 2", 2, "--layers"),
        ("texts.txt --out x.npy --format doc", 2, "--format doc"),
        ("texts.txt --out x.npy --device tpu9", 2, "device 'tpu9'"),
        ("texts.txt --out x.npy --precision fp8", 2, "precision 'fp8'"),
        ("texts.txt --out x.npy --dtype int8", 2, "dtype 'int8'"),
    ],
)
def test_errors_are_one_sentence(
    verb: Verb, bert: Path, lines: Path, words: str, code: int, fact: str
) -> None:
    (lines.parent / "rows.jsonl").write_text('{"note": "x", "id": 3}\n')
    done = verb("embed", bert, *words.split())
    assert done.exit_code == code
    assert done.stderr.startswith("firth: ")
    assert fact in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(lines.parent.glob("x.*"))


def test_invalid_inputs(embedder: Embedder, lines: Path) -> None:
    out = lines.with_name("out.npy")
    (lines.parent / "none.txt").write_text("")
    with pytest.raises(InputError, match=r"none.txt holds no text: it has no rows"):
        embed_file(embedder, lines.parent / "none.txt", out)
    with pytest.raises(InputError, match="is a folder; name a file"):
        embed_file(embedder, lines.parent, out)
    with pytest.raises(InputError, match="2 files"):
        embed_file(embedder, lines.parent / "*.txt", out)
    (lines.parent / "rows.csv").write_text("id,note\n1,x\n")
    with pytest.raises(InputError, match=r"has no field 'text' \(it has 'id', 'note'\)"):
        embed_file(embedder, lines.parent / "rows.csv", out)
    other = ReadOptions(column="note")
    assert embed_file(embedder, lines.parent / "rows.csv", out, reading=other).rows == 1
    foreign = lines.parent / "thesis.npy.partial"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("A life's work.")
    with pytest.raises(UsageError, match=r"\.partial has files"):
        embed_file(embedder, lines, lines.parent / "thesis.npy")
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
