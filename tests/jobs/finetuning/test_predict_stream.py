"""Predictions of a stream: as rows arrive, in bounded memory, and interrupted at any time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from firth.jobs.prediction import predict, predicting
from firth.utils.errors import InputError
from firth.utils.files import growing_file, partial_path
from firth.utils.streams import MAX_ITEMS, bounded_batches, interleave_errors
from tests.jobs.finetuning.toys import coloured

RunOf = Callable[[str], Path]
ROW = b'{"text": "the red dog"}\n'


def popen(*words: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "firth", *map(str, words)]
    # A background job inherits that SIGINT is ignored.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, **{"stdin": -1, "stdout": -1, "stderr": -1, **options})


def test_a_stream_equals_a_list(run_of: RunOf, tmp_path: Path) -> None:
    """Several batches give the same predictions in the same order."""
    _, dev = coloured(tmp_path, counts=(2, 1500))
    whole = predict(run_of("classify"), data=dev)
    stream = predicting(run_of("classify"), data=dev)
    first = list(islice(stream, 5))
    assert stream.done == 5
    found = [*first, *stream]
    assert [row.answer for row in found] == whole.answers
    assert [row.example for row in found] == whole.examples
    assert [row.example.line for row in found] == list(range(2, 1502))
    for row in first:
        (alone,) = predict(run_of("classify"), texts=[row.example.text]).answers
        assert row.answer["scores"] == pytest.approx(alone["scores"], abs=1e-5)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(run_of: RunOf, tmp_path: Path) -> None:
    peaks = []
    for count in (50, 2 * MAX_ITEMS + 50, 4 * MAX_ITEMS):  # the first warms up
        file = tmp_path / f"{count}.jsonl"
        file.write_bytes(ROW * count)
        stream = predicting(run_of("classify"), data=file)
        next(stream)
        tracemalloc.start()
        assert sum(1 for _ in stream) == count - 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[1]


@pytest.mark.slow
@pytest.mark.nightly
def test_rows_are_predicted_while_a_pipe_is_open(run_of: RunOf) -> None:
    """Also without --format, which is guessed from the first row."""
    process = popen("predict", run_of("classify"), "--data", "-")
    assert process.stdin is not None
    assert process.stdout is not None
    for colour, label in (("red", b"x"), ("green", b"y")):
        process.stdin.write(json.dumps({"text": f"the {colour} dog"}).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(label + b"\t")
    rest, error = process.communicate(timeout=300)
    assert (rest, error, process.returncode) == (b"", b"", 0)


@pytest.mark.slow
@pytest.mark.nightly
def test_an_interrupt_keeps_whole_lines(run_of: RunOf, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    process = popen("predict", run_of("classify"), "--data", "-", "--format", "jsonl", "--out", out)
    assert process.stdin is not None
    process.stdin.write(ROW * 300)
    process.stdin.flush()
    part = partial_path(out)
    while not part.exists() or part.read_bytes().count(b"\n") < 300:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert all(fact in error.decode() for fact in ("Interrupted", "300", str(part)))
    assert error.count(b"\n") == 1
    assert not out.exists()
    assert [json.loads(line)["label"] for line in part.read_text().splitlines()] == ["x"] * 300


@pytest.mark.nightly
def test_a_closed_pipe_ends_quietly(run_of: RunOf, tmp_path: Path) -> None:
    """`firth predict … | head -1`"""
    file = tmp_path / "rows.jsonl"
    file.write_bytes(ROW * 1000)
    reader, writer = os.pipe()
    process = popen("predict", run_of("classify"), "--data", file, stdout=writer)
    os.close(writer)
    os.close(reader)  # before the first line is written
    _, error = process.communicate(timeout=300)
    assert b"Traceback" not in error
    assert process.returncode != 0


# ---- batches and files


def test_an_error_of_a_live_stream_comes_after_the_items_before_it() -> None:
    def read() -> Iterator[int]:
        yield from range(2000)
        raise InputError("The pipe broke.")

    found = []
    with pytest.raises(InputError, match="The pipe broke"):
        for batch in bounded_batches(read(), lambda item: 1, max_items=16, live=True):
            assert len(batch) <= 16
            found += batch
    assert found == list(range(len(found)))
    assert len(found) >= 2000 - 16


def test_endless_bad_rows_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firth.utils.streams.MAX_CONSECUTIVE_ERRORS", 5)

    def read(report: Callable[[InputError], None]) -> Iterator[int]:
        yield 0
        for number in range(100):
            report(InputError(f"Row {number} is bad."))

    with pytest.raises(InputError, match=r"Row 0 is bad\."):
        list(interleave_errors(read))


def test_a_partial_file_ends_after_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    with pytest.raises(ValueError, match="enough"), growing_file(path) as write:
        write("one")
        with partial_path(path).open("ab") as file:
            file.write(b"half a li")  # as an interrupted write leaves it
        raise ValueError("enough")
    assert partial_path(path).read_text() == "one\n"
    assert not path.exists()
