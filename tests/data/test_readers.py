"""Readers: formats, compressions and invalid files."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import zstandard

from firth.data import input_files, readers
from firth.data.input_files import find_sources
from firth.data.readers import ReadOptions
from firth.utils.errors import InputError, UsageError
from firth.utils.streams import interleave_errors

TEXTS = ["One document,\non two lines.\n", "Ẹ káàárọ̀ — ɓera ƙarami.\n"]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def read(*paths: Path | str, **options: object) -> tuple[list[str], Counter[str]]:
    reading = ReadOptions(**options)  # type: ignore[arg-type]
    tally: Counter[str] = Counter()
    texts: list[str] = []
    for source in find_sources(paths, reading)[0]:
        with source.open() as raw:
            texts += source.documents(raw, reading, tally)
    return texts, +tally


def write_rows(format: str) -> bytes:
    """Write the two texts in a format with other libraries."""
    frame = pd.DataFrame({"id": [1, 2], "text": TEXTS})
    if format == "parquet":
        return frame.to_parquet()
    if format == "jsonl":
        return frame.to_json(orient="records", lines=True, force_ascii=False).encode()
    if format == "csv":
        return frame.to_csv(index=False).encode()
    if format == "tsv":
        return "\n".join(["id\ttext", '1\tsays "no', "2\tɓera"]).encode()
    if format.startswith("conll"):
        lines = ["\n".join(f"{word}\t{word}\tO" for word in text.split()) for text in TEXTS]
        return "\n\n".join(lines).encode()
    return "\n\n\n".join(TEXTS).encode()


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("format", readers.FORMATS)
def test_every_format_in_every_compression(tmp_path: Path, format: str, compression: str) -> None:
    path = tmp_path / f"Corpus.{format}{compression}"
    path.write_bytes(COMPRESS[compression](write_rows(format)))
    expected = ['says "no', "ɓera"] if format == "tsv" else TEXTS
    if format.startswith("conll"):
        expected = [" ".join(text.split()) for text in TEXTS]
    assert read(path)[0] == expected


def test_documents_of_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n \t\r\n\r\nthree")
    assert read(path)[0] == ["one\r\ntwo\r\n", "three"]
    assert read(path, documents="line")[0] == ["one\r\n", "two\r\n", "three"]
    assert read(path, documents="file")[0] == ["one\r\ntwo\r\n \t\r\n\r\nthree"]


def test_folders_and_globs(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/b/c.jsonl", ".hidden.txt", ".git/x.txt", "photo.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "x"}')
    sources, skipped = find_sources([tmp_path], ReadOptions())
    names = [str(Path(source.name).relative_to(tmp_path)) for source in sources]
    assert (names, skipped) == (["b.txt", "a/z.md", "a/b/c.jsonl"], 1)
    matched, _ = find_sources([f"{tmp_path}/**/*.md", tmp_path / "b.txt"], ReadOptions())
    assert [Path(source.name).name for source in matched] == ["z.md", "b.txt"]
    twice, _ = find_sources([tmp_path / "b.txt", f"{tmp_path}/./b.txt"], ReadOptions())
    assert len(twice) == 1
    inside, _ = find_sources([f"{tmp_path}/a*"], ReadOptions())
    assert [Path(source.name).name for source in inside] == ["z.md", "c.jsonl"]


def test_column_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n\n{"body": null}\n')
    assert read(path, column="body")[0] == ["x", ""]


def test_common_names_of_text_columns(tmp_path: Path) -> None:
    """One common name is accepted; a choice between two is an error."""
    frame = pd.DataFrame({"id": ["7", "8"], "Review": ["x", "y"]})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    for ending in ("parquet", "csv", "tsv", "jsonl"):
        assert read(tmp_path / f"a.{ending}")[0] == ["x", "y"]
    two = tmp_path / "two.csv"
    two.write_text("tweet,review\na,b\n")
    with pytest.raises(InputError, match=r"line 1 has 'tweet' and 'review'; .* with --column"):
        read(two)
    assert read(two, column="review")[0] == ["b"]
    two.write_text("review,text\na,b\n")
    assert read(two)[0] == ["b"]
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text('{"text": "x"}\n{"review": "y"}\n')
    with pytest.raises(InputError, match=r"line 2 has no field 'text' \(it has 'review'\)"):
        read(mixed)


def test_datasets_by_name(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text('{"text": "x"}\n{"text": "y"}\n')
    (tmp_path / "test.jsonl").write_text('{"text": "z"}\n')
    assert read(f"datasets:{tmp_path}")[0] == ["x", "y"]
    assert read(f"datasets:{tmp_path}:test")[0] == ["z"]
    with pytest.raises(InputError, match="has no field 'body'"):
        read(f"datasets:{tmp_path}", column="body")
    with pytest.raises(InputError, match="cannot be loaded"):
        read(f"datasets:{tmp_path}:nosuch")


def test_invalid_bytes_are_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("é\n".encode() + b"caf\xe9 \xff\xfe.\n")
    texts, tally = read(path)
    assert texts == ["é\ncaf\ufffd \ufffd\ufffd.\n"]
    assert tally == {"invalid bytes replaced": 3}
    with pytest.raises(InputError, match=r"a\.txt line 2: byte 6 of the file is not UTF-8"):
        read(path, strict=True)


def test_lone_surrogates_in_json_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"text": "x\ud83d y\ud83d\ude00"}')
    texts, tally = read(path)
    assert texts == ["x\ufffd y😀"]
    assert tally == {"invalid bytes replaced": 1}
    with pytest.raises(InputError, match=r"line 1: .* surrogate"):
        read(path, strict=True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"text": ', "line 2 is not JSON"),
        ('{"text": "a\tb"}', r"line 2 is not JSON: Invalid control character\.$"),
        ('{"text": "a', r"line 2 is not JSON: Unterminated string\.$"),
        ('["text"]', "line 2 is not a JSON object but list"),
        ('{"txt": "x"}', r"line 2 has no field 'text' \(it has 'txt'\); .* --column"),
        ('{"text": 7}', r"line 2: 'text' is not text but int \(7\)"),
        ("[" * 100_000, "line 2 is not JSON"),
    ],
)
def test_error_of_an_invalid_row(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n' + row + "\n")
    with pytest.raises(InputError, match=message):
        read(path)


LINES = b'{"text": "One document,\\non two lines."}\n{"text": "Another."}\n'
PIPED: dict[str, tuple[bytes, dict[str, str], list[str]]] = {
    "rows": (LINES, {}, ["One document,\non two lines.", "Another."]),
    "rows after a byte order mark": (b"\xef\xbb\xbf" + LINES[-21:], {}, ["Another."]),
    "a row longer than a pipe's buffer": (b'{"text": "%s"}' % (b"x" * 10**5), {}, ["x" * 10**5]),
    "rows of another column": (b'{"id": 1, "a": "x"}\n', {"column": "a"}, ["x"]),
    "rows that are text": (LINES[-21:], {"format": "txt"}, ['{"text": "Another."}\n']),
    "text": (b"{sic} Text.\n\n{\n", {}, ["{sic} Text.\n", "{\n"]),
    "nothing": (b"", {}, []),
}


@pytest.mark.parametrize("what", PIPED)
def test_format_of_standard_input(what: str) -> None:
    """It is plain text unless it begins with a JSON object or a format is given."""
    data, options, texts = PIPED[what]
    with piped(data):
        assert read("-", **options) == (texts, {})


@contextmanager
def piped(data: bytes) -> Iterator[None]:
    """Replace standard input by a pipe, into which a thread writes."""
    own, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    writer = threading.Thread(target=lambda: [os.write(writing, data), os.close(writing)])
    writer.start()
    try:
        yield
    finally:
        os.dup2(own, 0)
        os.close(own)
        os.close(reading)
        writer.join()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("id,note\n1,x\n", r"line 1 has no field 'text' \(it has 'id', 'note'\)"),
        ("id;text\n1;x\n", r"'text' \(it has 'id;text'\).*semicolons"),
        ("id\ttext\n1\tx\n", r"tabs.*\.tsv"),
        ("text,id\nx,1\ny\n", "line 3: 1 fields where the header has 2"),
        ("text\nHello, world\n", "line 2: 2 fields where the header has 1"),
        ('text\nfine\n"never closed\nmore\n', "line 4: unexpected end of data"),
    ],
)
def test_invalid_tables(tmp_path: Path, table: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(table)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "a.csv")


def test_invalid_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but nothing else")
    with pytest.raises(InputError, match="not a Parquet file"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz", ".zst"])
def test_truncated_and_damaged_archives(tmp_path: Path, compression: str) -> None:
    whole = COMPRESS[compression](json.dumps(list(range(50_000))).encode())
    path = tmp_path / f"a.txt{compression}"
    for data in (whole[: len(whole) // 2], b"not an archive at all"):
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"a.txt{compression} is damaged"):
            read(path)


def test_binary_and_utf16_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    with pytest.raises(InputError, match="is not text: byte 8 is zero"):
        read(path)
    path.write_bytes("text".encode("utf-16"))
    with pytest.raises(InputError, match="is UTF-16; convert it first"):
        read(path)


def test_empty_files(tmp_path: Path) -> None:
    for format in ("txt", "jsonl", "csv", "tsv"):
        path = tmp_path / f"a.{format}"
        path.write_bytes(b"")
        assert read(path)[0] == []


def test_missing_and_unknown_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file or folder"):
        read(tmp_path / "nosuch.txt")
    with pytest.raises(InputError, match="No file matches"):
        read(str(tmp_path / "*.txt"))
    with pytest.raises(InputError, match="There is no file to read"):
        read(tmp_path)
    (tmp_path / "notes").write_text("x")
    with pytest.raises(UsageError, match="--format"):
        read(tmp_path / "notes")
    assert read(tmp_path / "notes", format="txt")[0] == ["x"]


def test_long_lines_are_split_between_words_and_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_CHARS", 64)
    path = tmp_path / "a.txt"
    words = "ɓera " * 95
    path.write_text(words)
    texts, tally = read(path)
    assert "".join(texts) == words
    assert all(text.endswith(" ") and len(text) <= 64 for text in texts)
    assert tally["long documents cut"] == len(texts) - 1
    path.write_text("ɓ" * 500)
    assert "".join(read(path)[0]) == "ɓ" * 500


def test_too_long_rows_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_ROW_BYTES", 64)
    for name, rows in (("a.jsonl", '{"text": "x"}\n{"text": "%s"}'), ("a.tsv", "text\n%s")):
        (tmp_path / name).write_text(rows % ("x" * 100))
        with pytest.raises(InputError, match=r"line 2 .*longer"):
            read(tmp_path / name)


def test_unclosed_quotation_mark_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_ROW_BYTES", 64)
    (tmp_path / "a.csv").write_text('text\n"open\n' + "more\n" * 100)
    with pytest.raises(InputError, match=r"a\.csv line \d+: field larger than field limit"):
        read(tmp_path / "a.csv")


def test_long_rows_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "MAX_CHARS", 64)
    text = "ɓera " * 30 + "x" * 200
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + '\n{"text": "y"}')
    texts, tally = read(tmp_path / "a.jsonl")
    assert "".join(texts[:-1]) == text
    assert texts[-1] == "y"
    assert max(map(len, texts)) <= 64
    assert tally == {"long documents cut": 1}


CONLL = "Ada NNP B-PER\nsleeps VBZ O\n. . O\n\nÁkwà NN O\ndị VB O\nọcha JJ O\n"
CONLLU = """# newdoc id = a
# sent_id = 1
# text = They don't.
1\tThey\tthey\tPRON
2-3\tdon't\t_\t_
2\tdo\tdo\tAUX
3\tn't\tnot\tPART
4\t.\t.\tPUNCT

1\tRain\train\tNOUN
2\tfell\tfall\tVERB

# newdoc id = b
1\tWind\twind\tNOUN
"""


@pytest.mark.parametrize("name", ["a.conll", "a.iob", "a.IOB2", "a.bio", "a.txt", "a.conll.gz"])
def test_conll_is_read_as_sentences(tmp_path: Path, name: str) -> None:
    """By its extension, or by tags at the end of every line."""
    path = tmp_path / name
    path.write_bytes(COMPRESS[".gz" if name.endswith("gz") else ""](CONLL.encode()))
    joined = {"sentences of CoNLL files joined from words": 2}
    assert read(path) == (["Ada sleeps .", "Ákwà dị ọcha"], joined)
    assert read(path, documents="row") == read(path)
    assert read(path, documents="file")[0] == ["Ada sleeps .\nÁkwà dị ọcha"]


def test_a_conll_sentence_with_invalid_bytes_is_one_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(b"Rain O\n\nThe O\nKaf\xe9 O\nH\xe4us O\n\nSun O\n")
    (source,), _ = find_sources([path], by_row := ReadOptions(documents="row"))
    with source.open() as raw:
        first, error, last = interleave_errors(
            lambda bad: source.documents(raw, by_row, Counter(), bad)
        )
    assert (first, last) == ("Rain", "Sun")
    assert "a.conll line 3" in str(error)


def test_documents_of_conll_files(tmp_path: Path) -> None:
    marked, universal = tmp_path / "a.conll", tmp_path / "a.conllu"
    marked.write_text(f"-DOCSTART- -X- O\n\n{CONLL}\n-DOCSTART- -X- O\n\nIt O\n", encoding="utf-8")
    universal.write_text(CONLLU, encoding="utf-8")
    assert read(marked)[0] == ["Ada sleeps .\nÁkwà dị ọcha", "It"]
    assert read(universal)[0] == ["They don't.\nRain fell", "Wind"]
    assert read(universal, documents="line")[0] == ["They don't.", "Rain fell", "Wind"]
    [source] = find_sources([universal], ReadOptions())[0]
    with source.open() as raw:
        rows = list(source.rows(raw, ReadOptions(), Counter()))
    assert rows == [
        (4, {"text": "They don't."}),
        (10, {"text": "Rain fell"}),
        (14, {"text": "Wind"}),
    ]


@pytest.mark.parametrize("text", ["Blood type O\n" * 3, f"{CONLL}It rains.\n", "a O\nb O\n"])
def test_text_is_not_taken_for_conll(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    assert "".join(read(path)[0]).startswith(text[:6])
    path.write_text(CONLL, encoding="utf-8")
    assert read(path, format="txt")[0][0].startswith("Ada NNP B-PER")


@pytest.mark.parametrize("ending", ["xlsx", "xls", "docx", "pdf"])
def test_files_of_other_programs_are_refused_with_the_formats(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"reviews.{ending}"
    path.write_bytes(b"PK\x03\x04")
    for format in (None, "txt"):
        with pytest.raises(UsageError) as raised:
            find_sources([path], ReadOptions(format=format))
        assert all(fact in str(raised.value) for fact in (str(path), "csv", "parquet", "save"))
