"""Semantic search: exact, and with an index that is rebuilt when anything changes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console
from sklearn.metrics.pairwise import cosine_similarity

from firth import InputError, Model, ReadOptions, UsageError, load
from firth.cli.views import embedding as view
from firth.inference.embedding import embed_file, semantic_search
from firth.inference.embedding.semantic_search import (
    SearchIndex,
    StoredTexts,
    nearest_rows,
    open_index,
)
from tests.inference.conftest import TEXTS, MakeModel

Verb = Callable[..., Any]


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


# --- exact


@given(
    rows=st.integers(1, 60),
    width=st.integers(1, 9),
    top=st.integers(1, 70),
    block=st.integers(1, 400),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_nearest_rows_equal_scikit_learn(
    rows: int, width: int, top: int, block: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    vectors = unit(draw.integers(-1, 2, (rows, width)))  # small whole numbers: many are equal
    query = draw.integers(-2, 3, width).astype(np.float32)
    found, scores = nearest_rows(vectors, query, top, block)
    wanted = cosine_similarity(vectors.astype(np.float64), query[None].astype(np.float64))[:, 0]
    order = np.lexsort((np.arange(rows), -wanted.round(6)))[:top]
    np.testing.assert_allclose(scores, wanted[order], atol=1e-6)
    assert len(set(found.tolist())) == len(found) == min(top, rows)
    np.testing.assert_allclose(wanted[found], wanted[order], atol=1e-6)


def test_ties_are_in_file_order() -> None:
    draw = np.random.default_rng(0)
    pattern = unit(draw.normal(size=(3, 50)))
    vectors = pattern[draw.integers(0, 3, 1000)]
    found, scores = nearest_rows(vectors, pattern[1], 400, block=50 * 4 * 33)
    same = np.flatnonzero((vectors == pattern[1]).all(axis=1))
    assert 200 < len(same) < 400
    assert found[: len(same)].tolist() == same.tolist()
    assert len(set(scores[: len(same)].tolist())) == 1
    rest = found[len(same) :]
    assert (np.diff(rest) > 0).all()


def test_non_finite_vectors_are_never_found() -> None:
    vectors = np.eye(4, dtype=np.float32)
    vectors[2] = np.nan
    vectors[3, 0] = np.inf
    assert nearest_rows(vectors, np.ones(4, np.float32), 9)[0].tolist() == [0, 1]
    assert nearest_rows(vectors, np.zeros(4, np.float32), 9)[1].tolist() == [0.0, 0.0]


def test_a_list_in_memory(make_model: MakeModel) -> None:
    model = make_model("bert-tiny")
    hits = model.search(TEXTS, TEXTS[4], top=3)
    assert (hits[0].row, hits[0].text) == (5, TEXTS[4])
    assert hits[0].score == pytest.approx(1.0)
    vectors, query = model.embed(TEXTS), model.embed([TEXTS[4]])
    scores = cosine_similarity(vectors, query)[:, 0]
    assert [hit.row - 1 for hit in hits] == np.argsort(-scores)[:3].tolist()
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[:-4:-1], atol=1e-5)


def test_rows_without_words_are_never_found(model: Model, tmp_path: Path) -> None:
    texts = ["", TEXTS[0], "  ", "", TEXTS[1], "", ""]
    file = tmp_path / "blocks.txt"
    file.write_text("".join(f"{text}\n" for text in texts))
    for where in (texts, file):
        hits = model.search(where, TEXTS[1], top=4)
        assert [(hit.row, hit.text) for hit in hits] == [(5, TEXTS[1]), (2, TEXTS[0])]
        assert [hit.row for hit in model.search(where, TEXTS[0], top=1)] == [2]
    assert model.search(["", " "], TEXTS[0]) == []


# --- the index


@pytest.fixture
def model(bert: Path) -> Model:
    return load(bert)


def test_an_index_is_built_once(model: Model, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = model.index(lines)
    assert (first.built, len(first), first.path) == (True, 11, Path(f"{lines}.index"))
    assert list(first.texts) == TEXTS
    assert first.texts[-1] == TEXTS[-1]
    np.testing.assert_allclose(first.vectors, model.embed(TEXTS, normalize=True), atol=1e-6)
    monkeypatch.setattr(embed_file, "encode_texts", None)  # nothing may be embedded again,
    monkeypatch.setattr(semantic_search, "sha256", None)  # nor the file be read
    again = model.index(lines)
    assert not again.built
    for where in (again, lines, str(lines)):
        hits = model.search(where, "the sea", top=4)
        assert hits == model.search(first, "the sea", top=4)
    wanted = [(hit.row, hit.text) for hit in model.search(TEXTS, "the sea", top=4)]
    assert [(hit.row, hit.text) for hit in hits] == wanted


def test_an_index_lasts_until_something_changes(
    model: Model, make_model: MakeModel, lines: Path
) -> None:
    model.index(lines)
    os.utime(lines, (2e9, 2e9))  # another date, the same content
    assert not model.index(lines).built
    changed = lines.read_text().replace(TEXTS[0], TEXTS[0][::-1])
    lines.write_text(changed)
    os.utime(lines, (2e9, 2e9))  # the same size and date, in a future that cannot be trusted
    rebuilt = model.index(lines)
    assert rebuilt.built
    assert rebuilt.texts[0] == TEXTS[0][::-1]
    assert not model.index(lines).built
    other = make_model("bert-tiny", seed=9)
    assert other.index(lines).built
    assert model.index(lines).built
    assert open_index(model.embedder(normalize=True, pooling="cls"), lines).built
    assert sorted(path.name for path in lines.parent.iterdir()) == [
        "bert",
        "texts.txt",
        "texts.txt.index",
    ]


def test_an_index_in_another_directory(model: Model, lines: Path, tmp_path: Path) -> None:
    place = tmp_path / "far" / "away"
    assert model.index(lines, place=place).path == place
    assert not model.index(lines, place=place).built
    assert not Path(f"{lines}.index").exists()


@pytest.mark.parametrize("name", ["vectors.npy", "ends.npy", "texts"])
def test_a_damaged_index_is_rebuilt(model: Model, lines: Path, name: str) -> None:
    model.index(lines)
    os.truncate(Path(f"{lines}.index") / name, 130)
    again = model.index(lines)
    assert again.built
    assert list(again.texts) == TEXTS


def test_texts_of_all_kinds_come_back(model: Model, tmp_path: Path) -> None:
    texts = ["", "two\nlines", "Ünïcode ☃ 日本語 😀", "tab\tand \x1b[31mcolour", ""]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    read = open_index(model.embedder(normalize=True), file, reading=ReadOptions(column="body"))
    assert isinstance(read.texts, StoredTexts)
    assert list(read.texts) == texts == read.texts[:]
    assert read.faults == {"bad": {"count": 2, "first": 1}}
    with pytest.raises(IndexError):
        read.texts[5]
    (tmp_path / "blank.txt").write_text("\n\n")
    with pytest.raises(InputError, match=r"blank\.txt line 1 is empty"):
        model.index(tmp_path / "blank.txt")


# --- errors


def test_invalid_searches(model: Model, lines: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="query is empty"):
        model.search(TEXTS, " ")
    with pytest.raises(UsageError, match=r"`top`.* 0"):
        model.search(TEXTS, "sea", top=0)
    with pytest.raises(UsageError, match=r"`top`.*'a'"):
        model.search(TEXTS, "sea", top="a")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"nosuch\.txt"):
        model.search(Path("nosuch.txt"), "sea")
    with pytest.raises(UsageError, match=r"^- is not a regular file"):
        model.index("-")
    foreign = tmp_path / "texts.txt.index"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("A life's work.")
    with pytest.raises(UsageError, match=r"not an index.*--index"):
        model.index(lines)
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
    assert model.search(SearchIndex(model.embed([]), []), "sea") == []


# --- the command line


def test_the_verb(verb: Verb, bert: Path, lines: Path) -> None:
    first = verb("search", bert, lines, TEXTS[2], "--top", 2)
    assert first.exit_code == 0
    score, row, text = first.stdout.splitlines()[0].split("\t")  # a line for each text in a pipe
    assert (float(score), row, text) == (1.0, "3", TEXTS[2])
    assert f"The index of 11 rows is in {lines}.index" in first.stderr
    again = verb("search", bert, lines, TEXTS[2], "--top", 2)
    assert (again.stdout, again.stderr) == (first.stdout, "")
    values = json.loads(verb("search", bert, lines, TEXTS[2], "--top", 2, "--json").stdout)
    assert (values["built"], values["rows"], len(values["hits"])) == (False, 11, 2)
    assert values["hits"][0]["row"] == 3
    assert values["hits"][0]["text"] == TEXTS[2]
    assert values["hits"][0]["score"] == pytest.approx(1.0)
    missing = verb("search", bert, "nosuch.txt", "sea")
    assert missing.exit_code == 1
    assert "nosuch.txt" in missing.stderr


def test_blank_lines_of_a_text_are_no_bad_rows(verb: Verb, bert: Path, tmp_path: Path) -> None:
    """But they count, so that a row is the number of its line."""
    (tmp_path / "blank.txt").write_text(f"{TEXTS[0]}\n\n \n{TEXTS[2]}\n\u200b\n")
    values = json.loads(verb("search", bert, "blank.txt", TEXTS[2], "--json").stdout)
    assert [hit["row"] for hit in values["hits"]] == [4, 1]
    error, count = values["notes"]
    assert "blank.txt line 5" in error
    assert count.startswith("1 row")
    strict = verb("search", bert, "blank.txt", TEXTS[2], "--strict")
    assert strict.exit_code == 1
    assert "blank.txt line 5" in strict.stderr
    (tmp_path / "blank.txt").write_text(f"\n{TEXTS[0]}\n")
    assert verb("search", bert, "blank.txt", "sea", "--strict").exit_code == 0


def test_control_characters_are_not_printed(
    verb: Verb, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": "[/red] [bold]\x1b[31m\x07\nnext"}, {"text": "far " * 500}]
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    piped = verb("search", bert, "odd.jsonl", "sea").stdout
    index = load(bert).index(tmp_path / "odd.jsonl")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    console = Console(file=io.StringIO(), markup=False)
    console.print(*view.hits(index, load(bert).search(index, "sea"), 64))
    for shown in (piped, console.file.getvalue()):  # type: ignore[attr-defined]
        assert "[/red] [bold]" in shown
        assert "\x1b[31m" not in shown
        assert "\x07" not in shown
    assert "…" in shown
