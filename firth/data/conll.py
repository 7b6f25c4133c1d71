"""CoNLL files as text: the words of each sentence, joined by spaces.

The word is in the first column, in CoNLL-U in the second. Sentences are separated by empty lines,
documents by `-DOCSTART-` or, in CoNLL-U, `# newdoc`; `# text = …` there is the sentence itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

EXTENSIONS = {"conll": "conll", "iob": "conll", "iob2": "conll", "bio": "conll", "conllu": "conllu"}
DOCUMENT_START = "-DOCSTART-"
TAG = re.compile(r"O|[BIESLU]-\S+")
COMMENT = re.compile(r"# \S+ = ")
TEXT = re.compile(r"# text = (.*\S)")  # CoNLL-U: the sentence as it was written
MULTIWORD = re.compile(r"\d+[-.]\d+")  # CoNLL-U: multiword tokens and empty nodes
MIN_TAGGED = 5  # words with tags: CoNLL, not text

Line = tuple[int, str]  # number and text


class ConllSentence(NamedTuple):
    """A sentence, its first line, and whether the file says that a document begins with it."""

    line: int
    text: str
    begins_document: bool


def fields_of(line: str) -> list[str]:
    """Split a line at tabs if it has one, else at spaces."""
    line = line.rstrip(" \t\r\n")
    if "\t" in line:
        return [part.strip(" ") for part in line.split("\t")]
    return [part for part in line.split(" ") if part]


def begins_conll(head: bytes) -> bool:
    """Return whether every line is a word with other columns, of which the last is an entity tag.

    >>> begins_conll(b"Ada B-PER\\nsleeps O\\n. O\\n\\nIt O\\nrains O\\n")
    True
    >>> begins_conll(b"Ada sleeps.\\nBlood type O\\n"), begins_conll(b"-DOCSTART- -X- O\\n")
    (False, True)
    """
    lines = head.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
    if len(head) >= 1 << 12:
        lines = lines[:-1]  # it may be incomplete
    rows = [fields_of(line) for line in lines if line.strip() and not COMMENT.match(line)]
    if rows and rows[0][0] == DOCUMENT_START:
        return True
    alike = {len(row) for row in rows} == {len(rows[0])} and len(rows[0]) > 1 if rows else False
    return alike and len(rows) >= MIN_TAGGED and all(TAG.fullmatch(row[-1]) for row in rows)


def conll_sentences(lines: Iterable[Line], conllu: bool) -> Iterator[ConllSentence]:
    """Yield the sentences of numbered lines.

    >>> lines = enumerate(["-DOCSTART- O", "", "Ada B-PER", "sleeps O", "", "Rain O"], 1)
    >>> [(sentence.line, sentence.text) for sentence in conll_sentences(lines, conllu=False)]
    [(3, 'Ada sleeps'), (6, 'Rain')]
    """
    words: list[str] = []
    begin, text, opens = 0, "", False
    for number, line in lines:
        fields = fields_of(line)
        if not fields or fields[0] == DOCUMENT_START:
            if words:
                yield ConllSentence(begin, text or " ".join(words), opens)
                words, text, opens = [], "", False
            opens |= bool(fields)
        elif not words and (line.startswith("#") if conllu else COMMENT.match(line)):
            text = found[1] if (found := TEXT.match(line)) else text
            opens |= line.startswith("# newdoc")
        elif not conllu or not MULTIWORD.fullmatch(fields[0]):
            begin = begin if words else number
            words.append(fields[min(conllu, len(fields) - 1)])
    if words:
        yield ConllSentence(begin, text or " ".join(words), opens)


def conll_documents(sentences: Iterable[ConllSentence], join: str, max_chars: int) -> Iterator[str]:
    """Join sentences to documents: by the file's marks ("block") or all ("file"), else none."""
    if join not in ("block", "file"):
        yield from (sentence.text for sentence in sentences)
        return
    document: list[str] = []
    size, marked = 0, False
    for sentence in sentences:
        marked |= sentence.begins_document
        ends = join == "block" and (sentence.begins_document or not marked)
        if document and (ends or size > max_chars):
            yield "\n".join(document)
            document, size = [], 0
        document.append(sentence.text)
        size += len(sentence.text)
    if document:
        yield "\n".join(document)
