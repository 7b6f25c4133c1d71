"""Words and tags in columns and in lists, and what can be wrong with them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.data.stories.entity_tags import tokenize
from firth.tasks.readers import conll
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.conll import read_sentences, read_tagged
from firth.tasks.readers.examples import TaggedExample
from firth.tasks.readers.plain_words import split_words
from firth.utils.errors import InputError, UsageError
from firth.utils.streams import interleave_errors
from tests.conftest import SAMPLE


def tagged(path: Path, **columns: str) -> list[TaggedExample]:
    return list(read_tagged(TaskFile(path, columns=columns)))


def sentences(path: Path, format: str | None = None, **columns: str) -> list[TaggedExample]:
    file = TaskFile(path, format, columns, labels="ignored", allow_empty=True)
    return list(read_sentences(file))


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode())
        return path

    return write


# The first lines of CoNLL-2003's training file, as the shared task gives them out.
CONLL_2003 = """\
-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""


def test_conll_2003(file: Callable[[str, str], Path]) -> None:
    path = file("train.conll", CONLL_2003)
    assert tagged(path) == [
        TaggedExample(
            words=("EU", "rejects", "German", "call"), tags=("I-ORG", "O", "I-MISC", "O"), line=3
        ),
        TaggedExample(words=("Peter", "Blackburn"), tags=("I-PER", "I-PER"), line=8),
    ]
    assert [e.tags for e in tagged(path, tags="2")] == [("NNP", "VBZ", "JJ", "NN"), ("NNP",) * 2]
    assert tagged(path, tags="-2")[1].tags == ("I-NP", "I-NP")
    assert tagged(path, tags="-2") == tagged(path, tags="3")
    assert tagged(path, words="2", tags="1")[1].words == ("NNP", "NNP")


# The example of universaldependencies.org/format.html, shortened.
CONLLU = """\
# sent_id = 1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
5.1\tmar\tmar\tNOUN\t_\t_\t_\t_\t_\t_

#newpar
1\tA b\ta\tX\t_\t_\t0\troot\t_\t_
"""


def test_conllu_has_parts_of_speech(file: Callable[[str, str], Path]) -> None:
    found = tagged(file("es.conllu", CONLLU))
    assert [e.words for e in found] == [("vamos", "nos", "a", "el", "mar"), ("A b",)]
    assert [e.tags for e in found] == [("VERB", "PRON", "ADP", "DET", "NOUN"), ("X",)]
    assert [e.line for e in found] == [4, 13]
    lemmas = tagged(file("es.conllu", CONLLU), tags="3")
    assert lemmas[0].tags == ("ir", "nosotros", "a", "el", "mar")


@pytest.mark.parametrize(
    "content",
    [
        "Ada B-PER\nsleeps O\n\n\n\nRain O",
        "Ada\tB-PER\nsleeps\tO\n\nRain\tO\n",
        "\ufeffAda B-PER\r\nsleeps O\r\n\r\nRain O\r\n",
        "Ada  B-PER \nsleeps   O\n \t\nRain O\n\n",
        "\n# a comment of five words\nAda B-PER\nsleeps O\n\n# id 7\ttrain\tx\nRain O\n",
        "-DOCSTART- O\n\nAda B-PER\nsleeps O\n-DOCSTART- O\nRain O\n",
    ],
)
def test_how_lines_may_be_written(file: Callable[[str, str], Path], content: str) -> None:
    found = tagged(file("a.conll", content))
    assert [(e.words, e.tags) for e in found] == [
        (("Ada", "sleeps"), ("B-PER", "O")),
        (("Rain",), ("O",)),
    ]


def test_a_hash_is_a_word_where_it_has_a_tag(file: Callable[[str, str], Path]) -> None:
    found = tagged(file("a.conll", "# O\nlove O\n# O\n\n# O\n"))
    assert [e.words for e in found] == [("#", "love", "#"), ("#",)]
    assert tagged(file("a.conll", "# O\n"))[0].words == ("#",)
    found = tagged(file("b.conll", "# sent = 1\na X Y O\n# X Y O\n\n# sent = 2\nb X Y O\n"))
    assert [e.words for e in found] == [("a", "#"), ("b",)]


def test_spaces_that_are_no_separators_stay_in_words(file: Callable[[str, str], Path]) -> None:
    """No-break and ideographic spaces are letters here; with tabs, so are spaces."""
    found = tagged(file("a.conll", "10\u00a0000 O\n\u3000 O\n"))
    assert found[0].words == ("10\u00a0000", "\u3000")
    assert tagged(file("b.conll", "New York\tB-LOC\n"))[0].words == ("New York",)


def test_any_ending_and_compression(tmp_path: Path, file: Callable[[str, str], Path]) -> None:
    for name in ("a.txt", "a.tsv", "a.iob2", "a"):
        assert tagged(file(name, "Ada B-PER\n"))[0].tags == ("B-PER",)
    (tmp_path / "a.conll.gz").write_bytes(gzip.compress(b"Ada B-PER\n"))
    assert tagged(tmp_path / "a.conll.gz")[0].words == ("Ada",)


def test_words_alone_where_tags_are_not_needed(file: Callable[[str, str], Path]) -> None:
    path = file("a.conll", "Ada\nsleeps\n\nRain\n")
    assert [(e.words, e.tags) for e in sentences(path)] == [
        (("Ada", "sleeps"), None),
        (("Rain",), None),
    ]
    with pytest.raises(InputError, match=r"a\.conll line 1 has one field"):
        tagged(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Ada B-PER\n\nsleeps\n", "line 3: 1 fields where line 1 has 2"),
        ("Ada B-PER\nNew York B-LOC\n", "line 2: 3 fields where line 1 has 2"),
        ("Ada\tB-PER\nx\t\n", "line 2: 1 fields where line 1 has 2"),
        ("Ada\tB-PER\n\tO\n", "line 2: a word or its tag is empty"),
        ("Ada B-PER\nx LOC\n", "line 2: the tag 'LOC' has no prefix.* 'B-PER' in line 1"),
        ("x LOC\n\nAda B-PER\n", "line 1: the tag 'LOC' has no prefix.* 'B-PER' in line 3"),
        ("Ada B-PER\nx B-\n", "line 2: the tag 'B-' has no prefix"),
        ("", "has no examples"),
        ("\n \n-DOCSTART- O\n", "has no examples"),
        ("# only a comment\n", "has no examples"),
        ("text\tlabel\nA good film.\tx\n", r"line 1 .*\(text, label\)"),
        ("premise\thypothesis\tgold_label\na\tb\tc\n", "line 1 .*CoNLL"),
        ("source target\nx O\n", r"line 1 .*\(source, target\)"),
        (
            "text,label\nA good film,x\n",
            "line 1 has one field",
        ),
    ],
)
def test_what_is_wrong_is_named(
    file: Callable[[str, str], Path], content: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        tagged(file("a.conll", content))
    assert "a.conll" in str(caught.value)


def test_tags_without_any_prefix_are_fine(file: Callable[[str, str], Path]) -> None:
    assert tagged(file("a.conll", "( -LRB-\nruns VBZ\n"))[0].tags == ("-LRB-", "VBZ")


def test_a_file_without_empty_lines_is_refused(
    file: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conll, "MAX_SENTENCE", 5)
    assert len(tagged(file("a.conll", "x O\n" * 5))[0].words) == 5
    with pytest.raises(InputError, match=r"a\.conll line 2: a sentence of more than 5 words; put"):
        tagged(file("a.conll", "\n" + "x O\n" * 6))


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_bytes(b"Ma\xf1ana O\n")  # CoNLL-2002 is in Latin-1
    with pytest.raises(InputError, match=r"a\.conll line 1 .* not UTF-8; convert"):
        tagged(tmp_path / "a.conll")


# ---- lists --------------------------------------------------------------------------------------


def test_lists(tmp_path: Path, file: Callable[[str, str], Path]) -> None:
    expected = [TaggedExample(words=("Ada", "sleeps"), tags=("B-PER", "O"), line=1)]
    for names in (("words", "tags"), ("tokens", "ner_tags")):
        row = dict(zip(names, (["Ada", "sleeps"], ["B-PER", "O"]), strict=True))
        assert tagged(file("a.jsonl", json.dumps(row))) == expected
        pd.DataFrame([row]).to_parquet(tmp_path / "a.parquet")
        assert tagged(tmp_path / "a.parquet") == expected
    path = file("a.jsonl", '{"tokens": ["x", "y"], "pos_tags": [3, 0], "ner_tags": [0, 1]}')
    assert tagged(path, tags="pos_tags")[0].tags == ("3", "0")
    assert sentences(path)[0].tags is None
    with pytest.raises(InputError, match=r"has 'ner_tags' and 'pos_tags'; .* tags=NAME"):
        tagged(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"words": ["x", "y"], "tags": ["O"]}', "line 1: 2 words but 1 tags"),
        ('{"words": ["x", ""], "tags": ["O", "O"]}', "line 1: a word is empty"),
        ('{"words": ["x"], "tags": [""]}', "line 1: one of 'tags' is empty"),
        ('{"words": "x y", "tags": ["O", "O"]}', "line 1: 'words' is not a list but str"),
        ('{"words": [], "tags": []}', "line 1: 'words' is empty"),
        ('{"words": ["x"], "tags": null}', "line 1: 'tags' is empty"),
        ('{"words": ["x"]}', r"line 1 has no column 'tags' \(it has 'words'\)"),
        ('{"words": ["x", "y"], "tags": ["B-A", "C"]}', "line 1: the tag 'C' has no prefix"),
        ('{"words": [["x"]], "tags": ["O"]}', "line 1: 'words' is not text but list"),
    ],
)
def test_bad_lists(file: Callable[[str, str], Path], row: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"a\.jsonl {message}"):
        tagged(file("a.jsonl", row))


def test_columns_have_numbers_and_lists_have_names(file: Callable[[str, str], Path]) -> None:
    path = file("a.conll", "Ada B-PER\n")
    with pytest.raises(UsageError, match=r"numbers, from 1.*'tag'"):
        tagged(path, tags="tag")
    with pytest.raises(UsageError, match="have numbers, from 1, not '0'"):
        tagged(path, tags="0")
    with pytest.raises(InputError, match="has no column '2'"):
        tagged(file("a.jsonl", '{"words": ["x"], "tags": ["O"]}'), tags="2")
    with pytest.raises(InputError, match="line 1: 2 fields where line 1 has 2"):
        tagged(path, tags="4")


WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n\t "), min_size=1)
TAG = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC"])
SENTENCE = st.lists(st.tuples(WORD, TAG), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.lists(SENTENCE, min_size=1, max_size=4), st.sampled_from([" ", "\t"]))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    sentences: list[list[tuple[str, str]]],
    separator: str,
) -> None:
    if any(word in ("\ufeff", "-DOCSTART-") for sentence in sentences for word, _ in sentence):
        return
    if sentences[0][0][0].startswith("\ufeff"):
        return  # would be taken for the mark at the beginning of a file
    blocks = ("".join(f"{word}{separator}{tag}\n" for word, tag in s) for s in sentences)
    path = tmp_path_factory.mktemp("conll") / "a.conll"
    path.write_bytes("\n".join(blocks).encode())
    found = [list(zip(e.words, e.tags or (), strict=True)) for e in tagged(path)]
    assert found == sentences


# ---- texts that are to be tagged ----------------------------------------------------------------

SENTENCE_OF = ("Nora", "lived", "in", "St-Denis", ".")
TEXT_OF = "Nora lived in St-Denis."


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", TEXT_OF + "\n"),
        ("a.md", TEXT_OF),
        ("a", TEXT_OF + "\r\n"),
        ("a.csv", f'id,text\n7,"{TEXT_OF}"\n'),
        ("a.csv", f"review\n{TEXT_OF}\n"),
        ("a.tsv", f"text\tlabel\n{TEXT_OF}\tx\n"),
        ("a.jsonl", json.dumps({"text": TEXT_OF, "label": "x"})),
        ("a.jsonl", json.dumps({"tweet": TEXT_OF})),
        ("a.jsonl", json.dumps({"words": SENTENCE_OF, "text": "something else"})),
        ("a.jsonl", json.dumps({"tokens": SENTENCE_OF})),
        ("a.conll", "\n".join(SENTENCE_OF)),
        ("a.conll", "\n".join(f"{word} X" for word in SENTENCE_OF)),
        ("a.txt", "\n".join(f"{word} O" for word in SENTENCE_OF)),
        ("a.txt", "-DOCSTART- -X- O\n\n" + "\n".join(f"{word} NN O" for word in SENTENCE_OF)),
        ("a", "# id 1\n" + "\n".join(f"{word}\tB-PER" for word in SENTENCE_OF)),
        ("a.tsv", "\n".join(f"{word}\tO" for word in SENTENCE_OF)),
        ("a.tsv", "\n".join(f"{word}\tNOUN" for word in SENTENCE_OF)),
    ],
)
def test_a_text_may_stand_in_any_file(
    name: str, content: str, file: Callable[[str, str], Path]
) -> None:
    assert [e.words for e in sentences(file(name, content))] == [SENTENCE_OF]


@pytest.mark.parametrize(
    "lines",
    [
        ["Nora Mason lived in Summerton."],
        ["Hello"],
        ["She works for the BBC"],
        ["He made a U-turn"],
        ["the dog ran .", "the cat ran .", "the cow ran ."],
        ["Visit NASA", "I like it."],
        ["# Heading", "Some words of text"],
        ["I drove on I-95", "on B-roads only"],
    ],
)
def test_no_word_of_a_text_is_lost(lines: list[str], file: Callable[[str, str], Path]) -> None:
    found = sentences(file("a.txt", "\n".join(lines) + "\n"))
    assert ["".join(e.words) for e in found] == ["".join(line.split()) for line in lines]


@pytest.mark.parametrize(
    "content",
    [
        "Type O\n",
        "Nora B-PER\n\nShe O\n",
        "Nora B-PER\nNew York B-LOC\n",
        "dogs NOUN\nbark VERB\n",
        "Visit NASA\nBuy IBM\n",
        "Nora\tlived in Rome.\n",
        "1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_\n",
    ],
)
def test_what_is_not_clear_is_asked(content: str, file: Callable[[str, str], Path]) -> None:
    path = file("a.txt", content)
    with pytest.raises(InputError, match=r"--format conll or --format txt"):
        sentences(path)
    texts = [e.words for e in sentences(path, format="txt")]
    assert ["".join(words) for words in texts] == ["".join(x.split()) for x in content.splitlines()]
    if "York" not in content:
        columns = [word for e in sentences(path, format="conll") for word in e.words]
        assert columns == [line.split()[0] for line in content.splitlines() if line]


def test_a_named_column_of_texts(file: Callable[[str, str], Path]) -> None:
    path = file("a.jsonl", '{"words": ["x"], "note": "Nora ran."}')
    assert sentences(path, text="note")[0].words == ("Nora", "ran", ".")
    path = file("a.tsv", "note\tid\nNora ran.\t7\n")
    assert sentences(path, text="note")[0].words == ("Nora", "ran", ".")
    with pytest.raises(
        InputError, match=r"a\.tsv line 1 has no column 'text' \(it has 'note', 'id'"
    ):
        sentences(path)
    with pytest.raises(UsageError, match=r"text=note .*a\.txt"):
        sentences(file("a.txt", "Nora ran.\n"), text="note")
    with pytest.raises(InputError, match=r"has no column 'text' .*--column text=NAME"):
        sentences(file("a.csv", "x\ny\n"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"Anna\'s kite," he said.', '" Anna \'s kite , " he said .'),  # as the stories have it
        ("at eight o'clock", "at eight o'clock"),
        ("The U.S. won 3-1, 1,000 of 2.5 (10:30).", "The U.S. won 3-1 , 1,000 of 2.5 ( 10:30 ) ."),
        ("They don't, I'm… we’ll", "They do n't , I 'm … we ’ll"),
        ("हिन्दी cafe\u0301, 東京。", "हिन्दी cafe\u0301 , 東京 。"),
        ("100% of $5 — yes/no", "100 % of $ 5 — yes/no"),
        ("", ""),
    ],
)
def test_words_and_marks(text: str, words: str) -> None:
    assert split_words(text) == tuple(words.split())


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_character_is_in_a_word(text: str) -> None:
    words = split_words(text)
    assert "".join(words) == "".join(text.split())
    assert all(words)
    assert not any(char.isspace() for word in words for char in word)


def test_the_stories_are_divided_as_their_entities_are() -> None:
    sentences = [line for line in SAMPLE.splitlines() if line]
    assert [list(split_words(line)) for line in sentences] == [tokenize(s) for s in sentences]


@pytest.mark.parametrize("read", [read_tagged, read_sentences])
def test_a_sentence_with_invalid_bytes_is_one_bad_row(
    tmp_path: Path, read: Callable[[TaskFile], Iterator[TaggedExample]]
) -> None:
    path = tmp_path / "x.conll"
    path.write_bytes(b"Rain O\n\nThe O\nKaf\xe9 B-ORG\nH\xe4us I-ORG\n\nSun O\n")

    def rows(bad: Callable[[InputError], None]) -> Iterator[TaggedExample]:
        return read(TaskFile(path, bad=bad))

    first, error, last = interleave_errors(rows)
    assert isinstance(error, InputError)
    assert "x.conll line 4" in str(error)
    assert [row.words for row in (first, last) if isinstance(row, TaggedExample)] == [
        ("Rain",),
        ("Sun",),
    ]
    with pytest.raises(InputError, match=r"x\.conll line 4"):
        list(read(TaskFile(path)))
