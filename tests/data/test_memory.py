"""Texts in memory for tokenizers and shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import firth
from firth.data.corpus import Corpus
from firth.data.input_files import as_texts
from firth.data.memory import as_source
from firth.utils.errors import FirthError, UsageError

TEXTS = ["low low lower lower", "newest newest newest", "Widest!"]
TABLES: dict[str, Callable[[], Any]] = {
    "texts": lambda: TEXTS,
    "generator": lambda: iter(TEXTS),
    "tuples": lambda: [(text,) for text in TEXTS],
    "dicts": lambda: [{"review": text} for text in TEXTS],
    "columns": lambda: {"text": TEXTS},
    "DataFrame": lambda: pytest.importorskip("pandas").DataFrame({"text": TEXTS, "id": [1, 2, 3]}),
    "Series": lambda: pytest.importorskip("pandas").Series(TEXTS),
    "Table": lambda: pa.table({"text": TEXTS}),
    "Array": lambda: pa.array(TEXTS),
    "Dataset": lambda: pytest.importorskip("datasets").Dataset.from_dict({"text": TEXTS}),
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_table_is_read_like_a_file(kind: str) -> None:
    assert list(firth.Corpus(TABLES[kind]())) == TEXTS


def test_tokenizer_and_shards_of_texts(tmp_path: Path) -> None:
    """The same text gives the same tokenizer, and shards of the same text are not made again."""
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(TEXTS))
    options: dict[str, Any] = {"kind": "bpe-word", "vocab_size": 28, "workers": 1}
    expected, _ = firth.train_tokenizer(file, **options)
    tokenizer, report = firth.train_tokenizer(TEXTS, **options)
    assert tokenizer.fingerprint == expected.fingerprint
    assert report.documents == 3
    made = {"tokenizer": tokenizer, "out": tmp_path / "shards", "workers": 1}
    prepared = firth.prepare(pa.array(TEXTS), valid=["low newest"], **made)
    assert prepared.splits["train"]["documents"] == 3
    assert prepared.splits["valid"]["documents"] == 1
    assert firth.prepare(TEXTS, valid=["low newest"], **made).splits == prepared.splits
    with pytest.raises(FirthError, match="other text"):
        firth.prepare(TEXTS[:2], valid=["low newest"], **made)


@pytest.mark.parametrize("paths", [None, 5, [1.5], ["no_such_file"], "no such file.txt", []])
def test_wrong_paths(paths: Any) -> None:
    with pytest.raises(FirthError) as caught:
        list(firth.Corpus(paths))
    assert "\n" not in str(caught.value)


def test_empty_lists_and_one_line_descriptions(tmp_path: Path) -> None:
    tokenizer, _ = firth.train_tokenizer(TEXTS, kind="bpe", vocab_size=260, workers=1)
    assert repr(tokenizer).count("<|endoftext|>") == 1
    made: dict[str, Any] = {"tokenizer": tokenizer, "out": tmp_path / "shards"}
    firth.prepare(TEXTS, **made, workers=1, valid_fraction=0)
    assert "3 documents" in repr(firth.Shards(tmp_path / "shards"))
    with pytest.raises(UsageError, match="empty"):
        firth.train_tokenizer([], kind="bpe", vocab_size=260)
    with pytest.raises(UsageError, match="empty"):
        firth.prepare([], **made)
    with pytest.raises(UsageError, match="empty"):
        firth.evaluate([], data="dev.tsv")


def test_an_argument_with_a_space_is_never_a_text(firth_here: Callable[..., Any]) -> None:
    options = ("--kind", "char", "--vocab-size", "30", "--out", "tokenizer")
    refused = firth_here("tokenizer", "train", "no such folder", *options)
    assert refused.returncode == 1
    assert "no such folder" in refused.error


def test_texts_with_question_marks_and_names_of_files_are_texts() -> None:
    texts = ["See README.md", "a\0b [what]?"]
    assert [text[:3] for text in Corpus(texts)] == ["See", "ab "]


def test_a_folder_is_not_one_text(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("A text.\n")
    for path in (tmp_path, tmp_path / "*.txt"):
        with pytest.raises(FirthError, match=r"one|folder"):
            as_texts(path, "texts")


def test_explanations_are_not_names_of_columns() -> None:
    rows = as_source([("a", "b", "is_next")], "data", "text, text_b, label (is_next, not_next)")
    assert list(rows) == [{"text": "a", "text_b": "b", "label": "is_next"}]


def test_integers_beside_missing_values_of_pandas() -> None:
    """pandas makes such a column floats; its labels are 0 and 1 as in a file."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a", "b", "c"], "label": [0, 1, None], "x": [0.5, 1, None]})
    rows = list(as_source(frame, "train", "text, label"))
    assert [row["label"] for row in rows] == [0, 1, None]
    assert [type(row["label"]) for row in rows[:2]] == [int, int]
    assert [row["x"] for row in rows] == [0.5, 1.0, None]
    assert list(as_source(frame[:0], "train")) == []
    whole = list(as_source(frame.dropna(subset=["label"]), "train"))
    assert [(row["label"], type(row["label"])) for row in whole] == [(0, int), (1, int)]
    large = pandas.Series([1e300, float("inf"), None])
    assert next(iter(as_source({"x": large}, "train")))["x"] == 1e300
    assert list(as_source(large.to_frame("x"), "train"))[:2] == [{"x": 1e300}, {"x": float("inf")}]


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("place", [0, 3])
def test_missing_texts_are_bad_rows(missing: Any, place: int, tmp_path: Path) -> None:
    """They are skipped and noted in lists and Series as in tables; a path may not be missing."""
    texts: list[Any] = [*TEXTS[:place], missing, *TEXTS[place:]]
    options: dict[str, Any] = {"kind": "bpe-word", "vocab_size": 28, "workers": 1}
    expected, _ = firth.train_tokenizer(TEXTS, **options)
    for data in (texts, pytest.importorskip("pandas").Series(texts, dtype=object)):
        tokenizer, report = firth.train_tokenizer(data, **options)
        assert tokenizer.fingerprint == expected.fingerprint
        assert any(f"`paths` row {place + 1}" in note for note in report.notes)
    made: dict[str, Any] = {"tokenizer": expected, "workers": 1}
    prepared = firth.prepare(texts, valid=["low", missing, "new low"], out=tmp_path / "s", **made)
    assert [prepared.splits[split]["documents"] for split in ("train", "valid")] == [3, 2]
    assert any("`valid` row 2" in note for note in prepared.notes)
    with pytest.raises(FirthError, match=f"`paths` row {place + 1}"):
        firth.prepare(texts, out=tmp_path / "strict", strict=True, **made)
    (tmp_path / "a.txt").write_text("A text.\n")
    with pytest.raises(FirthError, match=r"None|nan"):
        firth.Corpus([str(tmp_path / "a.txt"), missing])
    with pytest.raises(FirthError, match="`paths`"):
        firth.train_tokenizer([missing], **options)


@pytest.mark.parametrize("data", [3, None])
def test_messages_name_all_kinds_of_data(data: Any) -> None:
    with pytest.raises(UsageError, match="`texts` is a string, a Path, a list"):
        as_texts(data, "texts")


def test_two_columns_of_one_name() -> None:
    pandas, pyarrow = (pytest.importorskip(name) for name in ("pandas", "pyarrow"))
    frame = pandas.DataFrame([["a", "b", 1]], columns=["text", "text", "label"])
    table = pyarrow.table([["a"], ["b"]], names=["text", "text"])
    for data in (frame, table):
        with pytest.raises(firth.InputError, match="`train`: two columns are called 'text'"):
            list(as_source(data, "train"))


def test_the_column_of_a_table(tmp_path: Path) -> None:
    rows = [{"opinion": text, "id": "x"} for text in TEXTS]
    options: dict[str, Any] = {"kind": "bpe-word", "vocab_size": 28, "workers": 1}
    tokenizer, _ = firth.train_tokenizer(rows, column="opinion", **options)
    assert tokenizer.fingerprint == firth.train_tokenizer(TEXTS, **options)[0].fingerprint
    made = firth.prepare(rows, column="opinion", tokenizer=tokenizer, out=tmp_path / "s", workers=1)
    assert made.report.documents == 3
