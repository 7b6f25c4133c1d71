"""Tables of every format, the columns that are found in them, and everything that can be wrong."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.data.cleaning import is_invisible
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.examples import LabelledExample
from firth.tasks.readers.table_files import read_labelled
from firth.utils.errors import InputError, UsageError

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
}


def labelled(
    path: str | Path, *, pair: bool | None = None, numbers: bool = False, **options: Any
) -> list[LabelledExample]:
    return list(read_labelled(TaskFile(path, **options), pair=pair, numbers=numbers))


def as_bytes(frame: pd.DataFrame, format: str) -> bytes:
    """A table in a format, written by pandas."""
    if format == "parquet":
        return bytes(frame.to_parquet(index=False))
    if format == "jsonl":
        return frame.to_json(orient="records", lines=True, force_ascii=False).encode()
    if format == "tsv":
        return frame.to_csv(index=False, sep="\t", quoting=csv.QUOTE_NONE).encode()
    return frame.to_csv(index=False).encode()


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("format", ["tsv", "csv", "jsonl", "parquet"])
def test_every_format_gives_the_same(
    file: Callable[..., Path], format: str, compression: str
) -> None:
    texts = ['He said "no', "ɓera, ƙarami", "Ẹ káàárọ̀"]
    frame = pd.DataFrame({"id": [7, 8, 9], "text": texts, "label": [1, 0, 1]})
    path = file(f"a.{format}{compression}", COMPRESS[compression](as_bytes(frame, format)))
    found = labelled(path)
    assert [(example.text, example.label) for example in found] == list(
        zip(texts, ["1", "0", "1"], strict=True)
    )
    first = 2 if format in ("tsv", "csv") else 1
    assert [example.line for example in found] == [first, first + 1, first + 2]


FIELD = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1
).filter(lambda text: not is_invisible(text))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=5))
def test_csv_and_json_keep_every_text(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    """Quotation marks, commas, tabs and line breaks come back as Python's writers wrote them."""
    folder = tmp_path_factory.mktemp("rows")
    sheet = io.StringIO()
    csv.writer(sheet).writerows([("text_a", "text_b", "label"), *((*row, "x") for row in rows)])
    (folder / "a.csv").write_bytes(sheet.getvalue().encode())
    lines = [json.dumps({"text_a": a, "text_b": b, "label": "x"}) for a, b in rows]
    (folder / "a.jsonl").write_text("\n".join(lines))
    for name in ("a.csv", "a.jsonl"):
        found = labelled(folder / name)
        assert [(example.text, example.second) for example in found] == rows


@settings(max_examples=60, deadline=None)
@given(st.lists(FIELD.map(lambda text: text.replace("\t", " ").replace("\n", " ")), min_size=1))
def test_tsv_keeps_every_text_without_tabs(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.tsv"
    path.write_bytes(("text\tlabel\n" + "".join(f"{text}\tx\n" for text in texts)).encode())
    assert [example.text for example in labelled(path)] == texts


def test_quotation_marks_in_tsv_are_text_as_in_glue(file: Callable[..., Path]) -> None:
    """Two rows of MRPC's kind: marks that never close, and marks around a whole field."""
    path = file("a.tsv", 'text_a\ttext_b\tlabel\n" No , " he said\t"Yes"\t1\nIt is 5" .\t""\t0\n')
    assert [(e.text, e.second, e.label) for e in labelled(path, pair=True)] == [
        ('" No , " he said', '"Yes"', "1"),
        ('It is 5" .', '""', "0"),
    ]


def test_a_row_on_several_lines_is_named_by_its_first(file: Callable[..., Path]) -> None:
    path = file("a.csv", '\ufefftext,label\r\n"on\r\ntwo lines",a\r\n\r\nx,b\r\n')
    found = labelled(path)
    assert [(example.text, example.line) for example in found] == [("on\r\ntwo lines", 2), ("x", 5)]


@pytest.mark.parametrize(
    ("header", "second"),
    [
        ("text,label", False),
        ("Text,Label", False),
        (" text , label", False),
        ("sentence,label", False),  # SST-2
        ("text_a,text_b,label", True),
        ("index,sentence1,sentence2,score", True),  # STS-B
        ("premise,hypothesis,idx,gold_label", True),  # MNLI, SNLI
        ("id,qid1,qid2,question1,question2,is_duplicate", True),  # QQP
        ("index,question,sentence,label", True),  # QNLI
        ("Quality,#1 ID,#2 ID,#1 String,#2 String", True),  # MRPC
    ],
)
def test_columns_of_public_files_are_found(
    file: Callable[..., Path], header: str, second: bool
) -> None:
    names = header.split(",")
    path = file("a.csv", f"{header}\n{','.join(f'in {name.strip()}' for name in names)}\n")
    (found,) = labelled(path)
    labels = ("label", "score", "gold_label", "is_duplicate", "quality")
    assert found.label == next(f"in {n.strip()}" for n in names if n.strip().lower() in labels)
    texts = [n.strip() for n in names if n.strip().lower().startswith(("text", "sent", "prem"))]
    texts += [n for n in names if n.startswith(("hyp", "question")) or n.endswith("String")]
    texts.sort(key=[n.strip() for n in names].index)
    assert list(found.inputs) == [f"in {name}" for name in texts]
    assert (found.second is not None) == second


def test_columns_can_be_named(file: Callable[..., Path]) -> None:
    path = file("a.csv", "text,label,body,other,stars\na,b,c,d,e\n")
    assert labelled(path, columns={"text": "body", "label": "stars"})[0].inputs == ("c",)
    assert labelled(path, columns={"text": "body", "label": "stars"})[0].label == "e"
    assert labelled(path, columns={"text_a": "body", "text_b": "other"})[0].inputs == ("c", "d")
    with pytest.raises(InputError, match=r"a\.csv line 1 has no column 'nosuch' \(it has 'text', "):
        labelled(path, columns={"text": "nosuch"})
    with pytest.raises(UsageError, match="text_a=body text_b=other names a pair"):
        labelled(path, columns={"text_a": "body", "text_b": "other"}, pair=False)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "text,klass\nx,y\n",
            r"a\.csv line 1 has no column 'label' \(it has 'text', 'klass'\); .* label=NAME",
        ),
        ("a.tsv", "a b c\t1\nd e f\t0\n", r"a\.tsv line 1 has no column 'text' \(it has 'a b c'"),
        (
            "a.csv",
            "text;label\nx;y\n",
            r"it has 'text;label'\); the file seems .* by semicolons",
        ),
        (
            "a.csv",
            "text;label\nx, z;y\n",
            r"where the header has 1; the file seems .* by semicolons",
        ),
        ("a.jsonl", '{"body": "x", "klass": 1}', r"a\.jsonl line 1 has no column 'label'"),
        ("a.csv", "tweet,review,label\na,b,c\n", "line 1 has 'tweet' and 'review'; rename one"),
        ("a.csv", "text,class,rating\na,b,c\n", "line 1 has 'class' and 'rating'; .* label=NAME"),
        ("a.csv", "text,text,label\na,b,c\n", "two columns are called 'text'"),
        ("a.csv", "text,label\nx,y\n \t,z\n", r"a\.csv line 3: 'text' is empty; fill it in or"),
        ("a.csv", "text,label\nx,y\nz, \n", r"a\.csv line 3: 'label' is empty"),
        ("a.tsv", "text\tlabel\nx\ty\nz\n", r"line 3: 1 fields where the header has 2; a field of"),
        ("a.csv", "text,label\nx, y,z\n", r"line 2: 3 fields where the header has 2; put quot"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": 7, "label": 1}', "line 2: .* not text"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"label": 1}', "line 2 has no field 'text'"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y"}', "line 2: 'label' is empty"),
        ("a.jsonl", '{"text": "\\ud800", "label": 1}', "line 1: .* surrogate"),
        ("a.jsonl", '{"text": "x", "label": {}}', "line 1: 'label' is not text but dict"),
        ("a.tsv", "text\tlabel\n", r"a\.tsv has no examples"),
        ("a.tsv", "", r"a\.tsv has no examples"),
        ("a.txt", "some text\n", r"a\.txt line 1 has no column 'label' \(it has 'text'\)"),
    ],
)
def test_what_is_wrong_is_named(
    file: Callable[..., Path], name: str, content: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        labelled(file(name, content))
    assert "\n" not in str(caught.value)


def test_text_in_place_of_names_is_not_shown_whole(file: Callable[..., Path]) -> None:
    path = file("a.tsv", "\t".join(["word " * 1000] * 50) + "\n" + "\t".join("x" * 50) + "\n")
    with pytest.raises(InputError, match="two columns") as caught:
        labelled(path)
    assert len(str(caught.value)) < 300
    path = file("a.tsv", "\t".join(f"{n} word " * 1000 for n in range(50)) + "\n" + "\t" * 49)
    with pytest.raises(InputError, match="and 38 more") as caught:
        labelled(path)
    assert len(str(caught.value)) < 1000


def test_bytes_that_are_not_utf8_are_named(file: Callable[..., Path]) -> None:
    path = file("a.tsv", b"text\tlabel\nfine\tx\ncaf\xe9\tx\n")
    with pytest.raises(InputError, match=r"a\.tsv line 3: byte 21 of the file is not UTF-8"):
        labelled(path)


def test_predicting_keeps_every_row(file: Callable[..., Path]) -> None:
    path = file("a.csv", 'text\nx\n""\ny\n')
    found = labelled(path, labels="optional", allow_empty=True)
    assert [(example.text, example.label, example.line) for example in found] == [
        ("x", None, 2),
        ("", None, 3),
        ("y", None, 4),
    ]
    path = file("a.txt", "x\n\nlast, without an end")
    found = labelled(path, labels="optional", allow_empty=True)
    assert [example.text for example in found] == ["x", "", "last, without an end"]
    assert labelled(file("b.txt", ""), labels="optional", allow_empty=True) == []
    path = file("c.jsonl", [{"text": "x", "label": "a"}, {"text": "y"}])
    assert [e.label for e in labelled(path, labels="optional")] == ["a", None]


def test_a_column_of_labels_that_nobody_needs_may_be_unclear(file: Callable[..., Path]) -> None:
    path = file("a.csv", "text,class,rating\na,b,c\n")
    assert labelled(path, labels="optional") == [LabelledExample(text="a", line=2)]


def test_scores(file: Callable[..., Path]) -> None:
    path = file("a.tsv", "text_a\ttext_b\tlabel\nx\ty\t5.000\nx\ty\t-1e-3\n")
    assert [example.label for example in labelled(path, numbers=True)] == [5.0, -0.001]
    path = file("a.jsonl", [{"text": "x", "score": 3}, {"text": "x", "score": 2.5}])
    assert [example.label for example in labelled(path, numbers=True)] == [3.0, 2.5]


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"nan"', '"-inf"', '"abc"', '"3,5"', "true"])
def test_scores_that_are_no_numbers(file: Callable[..., Path], value: str) -> None:
    path = file("a.jsonl", '{"text": "x", "label": 1}\n{"text": "x", "label": ' + value + "}")
    with pytest.raises(InputError, match=r"a\.jsonl line 2: 'label' is .*, not a finite number"):
        labelled(path, numbers=True)


def test_scores_beyond_a_network(file: Callable[..., Path]) -> None:
    for value in ("1e39", "1_000", "1" + "0" * 400):
        with pytest.raises(InputError, match="not a finite number"):
            labelled(file("a.csv", f"text,label\nx,{value}\n"), numbers=True)
    with pytest.raises(InputError, match="line 2: 'label' is empty"):
        labelled(file("a.csv", "text,label,z\nx,,z\n"), numbers=True)


def test_many_labels(file: Callable[..., Path]) -> None:
    path = file("a.jsonl", [{"text": "x", "labels": ["b", "a", "b"]}, {"text": "y", "labels": []}])
    assert [example.label for example in labelled(path)] == [("b", "a"), ()]
    path = file("a.tsv", 'text\tlabel\nw\t["d", 1]\nx\ta,b\ny\t\nz\t[]\n')
    assert [e.label for e in labelled(path)] == [("d", "1"), ("a,b",), (), ()]
    path = file("a.tsv", 'text\tlabel\nx\ta,b\nz\t["d", 1]\n')
    assert [e.label for e in labelled(path)] == ["a,b", '["d", 1]']
    path = file("a.jsonl", [{"text": "x", "label": "a"}, {"text": "y", "label": ["a"]}])
    with pytest.raises(InputError, match="line 2: 'label' is a list of labels"):
        labelled(path)
    path = file("a.jsonl", [{"text": "x", "label": ["a", None]}])
    with pytest.raises(InputError, match="line 1: one of 'label' is empty"):
        labelled(path)


def test_lists_in_parquet(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": ["x", "y"], "labels": [[3, 1], []]})  # as GoEmotions
    frame.to_parquet(tmp_path / "a.parquet")
    assert [e.label for e in labelled(tmp_path / "a.parquet")] == [("3", "1"), ()]


def test_one_file_is_read(tmp_path: Path, file: Callable[..., Path]) -> None:
    file("a.csv", "text,label\nx,y\n")
    file("b.csv", "text,label\nx,y\n")
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        labelled(tmp_path)
    with pytest.raises(InputError, match="2 files; name one"):
        labelled(f"{tmp_path}/*.csv")
    with pytest.raises(InputError, match="There is no file"):
        labelled(tmp_path / "c.csv")
    with pytest.raises(UsageError, match="--format"):
        labelled(file("notes", "x"))
    assert labelled(file("notes", "text,label\nx,y\n"), format="csv")[0].label == "y"
