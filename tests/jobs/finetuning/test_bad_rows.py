"""Bad rows: one rule for every verb."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import finetune
from firth.jobs.prediction import predict
from firth.utils.errors import InputError
from tests.conftest import Result
from tests.jobs.finetuning.toys import TINY

GOOD = ['{"text": "the [MASK] dog", "label": "x"}', '{"text": "a [MASK]", "label": "y"}'] * 4
BAD = {  # by line
    2: b"{oops",
    3: b'{"other": 1, "label": "x"}',
    4: b'{"text": 7, "label": "x"}',
    5: b'{"text": " ", "label": "x"}',
    6: b'{"text": "\\u200b\\ufeff", "label": "x"}',
    7: b'{"text": "caf\xe9", "label": "x"}',
}
# What bad rows become, and the arguments.
VERBS: dict[str, tuple[str, list[str]]] = {
    "predict": ("null", ["RUN", "--data", "rows.jsonl", "--out", "out"]),
    "fill": ("null", ["ENCODER", "--file", "rows.jsonl", "--out", "out"]),
    "generate": (
        "null",
        ["DECODER", "--file", "rows.jsonl", "--max-new-tokens", "1", "--out", "out"],
    ),
    "embed": ("null", ["ENCODER", "rows.jsonl", "--out", "out.jsonl"]),
    "evaluate": ("skipped", ["RUN", "--data", "rows.jsonl"]),
    "prompt": (
        "skipped",
        [
            "DECODER",
            "--task",
            "classify",
            "--labels",
            "x,y",
            "--data",
            "rows.jsonl",
            "--out",
            "out",
        ],
    ),
    "finetune": (
        "skipped",
        [
            "ENCODER",
            "--task",
            "classify",
            "--train",
            "rows.jsonl",
            "--out",
            "out",
            "--set",
            "steps=1",
        ],
    ),
    "prepare": ("skipped", ["rows.jsonl", "--tokenizer", "ENCODER", "--out", "out"]),
    "tokenizer train": (
        "skipped",
        ["rows.jsonl", "--kind", "char", "--vocab-size", "18", "--out", "out"],
    ),
}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file with a good row, the bad ones, and more good rows."""
    good = [line.encode() for line in GOOD]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join([good[0], *BAD.values(), *good[1:], b""]))
    return tmp_path / "rows.jsonl"


@pytest.mark.parametrize("verb", VERBS)
def test_bad_rows_are_reported_and_the_others_used(
    verb: str,
    rows: Path,
    models: dict[str, Path],
    run_of: Callable[[str], Path],
    firth_here: Callable[..., Result],
) -> None:
    becomes, arguments = VERBS[verb]
    places = {"ENCODER": models["encoder"], "DECODER": models["decoder"], "RUN": run_of("classify")}
    command = [*verb.split(), *(places.get(word, word) for word in arguments)]
    strict = firth_here(*command, "--strict")
    assert strict.returncode == 1
    assert "rows.jsonl line 2" in strict.error
    assert [path.name for path in rows.parent.iterdir()] == ["rows.jsonl"]
    done = firth_here(*command)
    assert done.returncode == 0, done.stderr
    for line in BAD:
        assert f"rows.jsonl line {line}" in done.stdout + done.stderr, line
    assert f"{len(BAD)} rows were bad" in done.stdout + done.stderr
    if becomes == "null":
        (out,) = rows.parent.glob("out*")
        answers = [json.loads(line) for line in out.read_text().splitlines()]
        vectors = [answer and answer.get("vector", answer) for answer in answers]
        assert [i for i, vector in enumerate(vectors, 1) if vector is None] == list(BAD)
        assert len(answers) == len(GOOD) + len(BAD)


def test_the_same_in_python(
    rows: Path, models: dict[str, Path], run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    found = predict(run_of("classify"), data=rows)
    assert [i for i, answer in enumerate(found.answers, 1) if answer is None] == list(BAD)
    for notes in (found.notes, evaluate(run_of("classify"), data=rows).notes):
        assert all(f"line {line}" in " ".join(notes) for line in BAD)
    texts = predict(run_of("classify"), ["red", "\u200b", "blue"])
    assert [answer is None for answer in texts.answers] == [False, True, False]
    assert "text 2" in texts.notes[0]
    for given in (["red", None, "blue"], [{"text": "red"}, None, {"text": "blue"}]):
        missing = predict(run_of("classify"), given)
        assert [answer is None for answer in missing.answers] == [False, True, False]
        assert " 2 " in missing.notes[0]
    for call in (predict, evaluate):
        with pytest.raises(InputError, match=r"rows\.jsonl line 2"):
            call(run_of("classify"), data=rows, strict=True)
    options = {"task": "classify", "train": rows, "out": tmp_path / "run", "overrides": TINY}
    with pytest.raises(InputError, match=r"rows\.jsonl line 2"):
        finetune(models["encoder"], **options, strict=True)
    assert not (tmp_path / "run").exists()


def test_bad_rows_in_arrays_and_parquet(
    rows: Path, models: dict[str, Path], firth_here: Callable[..., Result]
) -> None:
    import pyarrow.parquet as pq

    for out in ("out.npy", "out.parquet"):
        assert firth_here("embed", models["encoder"], rows, "--out", out).returncode == 0
    places = [line - 1 for line in BAD]
    vectors = np.load(rows.with_name("out.npy"))
    assert np.flatnonzero(np.isnan(vectors).all(1)).tolist() == places
    assert np.isfinite(np.delete(vectors, places, 0)).all()
    table = pq.read_table(rows.with_name("out.parquet")).to_pydict()
    for column in ("text", "vector"):
        assert [i for i, value in enumerate(table[column]) if value is None] == places
