"""Translations, minimal pairs and last words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firth.tasks.readers.examples import MinimalPair, Seq2SeqExample
from firth.tasks.readers.sentence_pairs import read_last_words, read_minimal_pairs
from firth.tasks.readers.table_files import read_translated
from firth.utils.errors import InputError, UsageError
from tests.tasks.readers.conftest import read


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
