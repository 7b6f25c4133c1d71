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
from firth.tasks.readers.examples import (
    ChoiceExample,
    LabelledExample,
    MinimalPair,
    PassageExample,
    Seq2SeqExample,
    Turn,
)
from firth.tasks.readers.running_text import read_passages
from firth.tasks.readers.sentence_pairs import read_last_words, read_minimal_pairs
from firth.tasks.readers.table_files import (
    read_choices,
    read_labelled,
    read_translated,
)
from firth.utils.errors import InputError, UsageError

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
}


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Write a file: text as it is, or rows as JSONL."""

    def write(name: str, content: str | bytes | list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def read(reader: Callable[..., Any], path: str | Path, **options: Any) -> list[Any]:
    return list(reader(TaskFile(path, **options)))


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


# ---- labels -------------------------------------------------------------------------------------


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


# ---- choices ------------------------------------------------------------------------------------

TWO = ChoiceExample(text="Ice is", choices=("hot", "cold"), label=1, line=1)


@pytest.mark.parametrize(
    "row",
    [
        {"text": "Ice is", "choices": ["hot", "cold"], "label": 1},
        {"text": "Ice is", "choices": ["hot", "cold"], "label": "cold"},
        {"ctx": "Ice is", "endings": ["hot", "cold"], "label": "1"},  # HellaSwag
        {"startphrase": "Ice is", "ending0": "hot", "ending1": "cold", "label": 1},  # SWAG
        {
            "question": "Ice is",
            "choices": {"text": ["hot", "cold"], "label": ["1", "2"]},
            "answerKey": "2",
        },  # ARC
    ],
)
def test_choices(file: Callable[..., Path], row: dict[str, Any]) -> None:
    assert read(read_choices, file("a.jsonl", [row])) == [TWO]


def test_choices_in_tables(file: Callable[..., Path]) -> None:
    lists = file("a.tsv", 'text\tchoices\tlabel\nIce is\t["hot", "cold"]\t1\n')
    columns = file("a.csv", "text,choice_1,choice_0,choice_2,label\nIce is,cold,hot,,cold\n")
    assert [
        (e.text, e.choices, e.label) for path in (lists, columns) for e in read(read_choices, path)
    ] == [("Ice is", ("hot", "cold"), 1)] * 2


def test_the_right_choice_may_be_unknown(file: Callable[..., Path]) -> None:
    path = file("a.jsonl", [{"text": "x", "choices": ["a", "b"], "label": -1}])
    assert read(read_choices, path, labels="optional")[0].label is None
    with pytest.raises(InputError, match="line 1: 'label' is empty"):
        read(read_choices, path)


@pytest.mark.parametrize(
    ("choices", "label", "message"),
    [
        (["a", "b"], 2, "'label' is '2', which names none of the 2 choices"),
        (["a", "b"], "c", "'label' is 'c', which names none"),
        (["a", "b"], True, "names none"),
        (["1", "0"], "1", "names more than one"),
        (["a", "a"], "a", "names more than one"),
        (["a"], 0, "fewer than two"),
        (["a", " "], 0, "a choice is empty"),
        ("a, b", 0, r"'choices' is not a JSON list \('a, b'\)"),
        (7, 0, "'choices' is not a list but int"),
        ({"text": ["a", "b"], "label": ["A"]}, "A", "2 choices but 1 names"),
    ],
)
def test_bad_choices(
    file: Callable[..., Path], choices: object, label: object, message: str
) -> None:
    path = file("a.jsonl", [{"text": "x", "choices": choices, "label": label}])
    with pytest.raises(InputError, match=rf"a\.jsonl line 1: .*{message}"):
        read(read_choices, path)


def test_choices_are_counted_from_0(file: Callable[..., Path]) -> None:
    for names, missing in (("choice_1,choice_2", 0), ("choice_0,choice_9999", 1)):
        path = file("a.csv", f"text,{names},label\nx,a,b,0\n")
        with pytest.raises(InputError, match=f"no choice {missing};"):
            read(read_choices, path)


# ---- other tables -------------------------------------------------------------------------------


def test_translations(file: Callable[..., Path]) -> None:
    expected = [("A cat.", "Un chat.")]
    for name, content, named in (
        ("a.tsv", "source\ttarget\nA cat.\tUn chat.\n", {}),
        ("b.csv", "src,tgt\nA cat.,Un chat.\n", {}),
        ("c.csv", "id,en,fr\n1,A cat.,Un chat.\n", {"source": "en", "target": "fr"}),
        (
            "d.jsonl",
            [{"translation": {"fr": "Un chat.", "en": "A cat."}}],
            {"source": "en", "target": "fr"},
        ),
        ("e.jsonl", [{"document": "A cat.", "summary": "Un chat.", "id": 1}], {}),
    ):
        found = read(read_translated, file(name, content), columns=named)
        assert [(example.source, example.target) for example in found] == expected


def test_sources_alone(file: Callable[..., Path]) -> None:
    path = file("a.tsv", "source\ttarget\nx\t\n")
    with pytest.raises(InputError, match=r"a\.tsv line 2: 'target' is empty"):
        read(read_translated, path)
    assert read(read_translated, path, labels="optional") == [Seq2SeqExample(source="x", line=2)]
    path = file("a.txt", "x\ny\n")
    assert [e.source for e in read(read_translated, path, labels="optional")] == ["x", "y"]
    with pytest.raises(InputError, match=r"line 1 has no column 'source' and 'target' \(it has 't"):
        read(read_translated, path)
    path = file("b.csv", "text,prompt\nx,y\n")
    with pytest.raises(InputError, match="has 'text' and 'prompt'"):
        read(read_translated, path, labels="optional")
    with pytest.raises(UsageError, match="target=fr needs source=NAME"):
        read(read_translated, path, columns={"target": "fr"})
    with pytest.raises(InputError, match="has no column 'target'"):
        read(read_translated, path, columns={"source": "text"})


def test_minimal_pairs_as_blimp_writes_them(file: Callable[..., Path]) -> None:
    rows = [
        {
            "sentence_good": "Lucille's sisters are confused by Amy.",
            "sentence_bad": "Lucille's sisters are communicated by Amy.",
            "field": "syntax",
            "linguistics_term": "argument_structure",
            "UID": "passive_1",
            "pairID": "0",
        },
        {
            "sentence_good": "Same.",
            "sentence_bad": "Same.",
            "linguistics_term": "argument_structure",
        },
    ]
    good, bad = rows[0]["sentence_good"], rows[0]["sentence_bad"]
    assert read(read_minimal_pairs, file("a.jsonl", rows)) == [
        MinimalPair(
            good=good,
            bad=bad,
            category="passive_1",
            term="argument_structure",
            field="syntax",
            line=1,
        ),
        MinimalPair(
            good="Same.",
            bad="Same.",
            category="argument_structure",
            term="argument_structure",
            line=2,
        ),
    ]
    named = file(
        "anaphora.jsonl", [{"sentence_good": "I saw myself.", "sentence_bad": "I saw us."}]
    )
    assert [pair.category for pair in read(read_minimal_pairs, named)] == ["anaphora"]
    with pytest.raises(InputError, match="line 1 has no column 'sentence_good' and 'sentence_bad'"):
        read(read_minimal_pairs, file("a.jsonl", [{"sentence_good": "x"}]))
    with pytest.raises(InputError, match="line 1: 'sentence_bad' is empty"):
        read(read_minimal_pairs, file("a.jsonl", [{"sentence_good": "x", "sentence_bad": " "}]))


def test_the_last_word_is_what_stands_behind_the_last_space(file: Callable[..., Path]) -> None:
    rows = [{"text": "He looked at the moon \n"}, {"text": "one  two\tthree-four."}]
    for name, content in (
        ("a.jsonl", rows),
        ("b.txt", "He looked at the moon\n\none  two\tlast\n"),
    ):
        found = read(read_last_words, file(name, content))
        assert (found[0].text, found[0].word, found[0].line) == ("He looked at the", "moon", 1)
        assert found[1].text == "one  two"
    assert [(row.word, row.line) for row in found] == [("moon", 1), ("last", 3)]
    with pytest.raises(InputError, match=r"a.txt line 2: 'word' is a single word"):
        read(read_last_words, file("a.txt", "two words\nword\n"))


# ---- passages -----------------------------------------------------------------------------------


def test_passages_of_plain_text(file: Callable[..., Path]) -> None:
    path = file("a.txt", "\ufeff\none\ntwo\n\n\nthree\n")
    assert [(p.text, p.line) for p in read(read_passages, path)] == [("one\ntwo", 2), ("three", 6)]
    with pytest.raises(InputError, match="has no text"):
        read(read_passages, file("b.txt", "\n\n"))


def test_passages_are_read_one_at_a_time(file: Callable[..., Path]) -> None:
    passages = read_passages(TaskFile(file("a.jsonl", '{"text": "x"}\n{"text": 7}')))
    assert next(passages) == PassageExample(text="x", line=1)
    with pytest.raises(InputError, match="line 2: 'text' is not text but int"):
        next(passages)


def test_dialogues(file: Callable[..., Path]) -> None:
    turns = (Turn(role="user", content="Hi."), Turn(role="assistant", content="Hello."))
    rows = [
        {"messages": [{"role": t.role, "content": t.content} for t in turns]},
        {"conversations": [{"from": t.role, "value": t.content} for t in turns]},
    ]
    for row in rows:
        (passage,) = read(read_passages, file("a.jsonl", [row]))
        assert (passage.turns, passage.text) == (turns, "user: Hi.\nassistant: Hello.")


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([], "'messages' has no turns"),
        (["Hi."], "turn 1 of 'messages' is not an object with role and content"),
        ([{"role": "user"}], "turn 1 of 'messages' has no 'content'"),
        ([{"content": "x"}], "turn 1 of 'messages' has no 'role'"),
        ([{"role": "user", "content": 7}], "'content' is not text but int"),
    ],
)
def test_bad_dialogues(file: Callable[..., Path], turns: object, message: str) -> None:
    with pytest.raises(InputError, match=rf"a\.jsonl line 1.*{message}"):
        read(read_passages, file("a.jsonl", [{"messages": turns}]))
