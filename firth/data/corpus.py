"""A corpus: raw documents in a fixed order, in batches, with a report of what was removed.

One process reads the documents; worker processes clean the batches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from firth.data.cleaning import clean, is_invisible
from firth.data.input_files import corpus_sources, find_sources
from firth.data.memory import Data
from firth.data.readers import Bad, ReadOptions
from firth.utils.bad_rows import MAX_REPORTED, SKIPPED, bad_row_notes, raise_error
from firth.utils.errors import InputError, UsageError
from firth.utils.streams import interleave_errors

BAD_ROW = "bad row"  # why a document was removed


@dataclass
class CorpusReport:
    """Counts of documents that were kept, and of what was removed or repaired, by reason."""

    documents: int = 0  # kept
    words: int = 0  # separated by white space
    characters: int = 0
    removed: Counter[str] = field(default_factory=Counter)  # documents, by reason
    repaired: Counter[str] = field(default_factory=Counter)  # smaller repairs, by kind
    errors: list[str] = field(default_factory=list)  # of the first bad rows

    def add(self, other: CorpusReport) -> None:
        """Add the counts of another part of the corpus."""
        self.documents += other.documents
        self.words += other.words
        self.characters += other.characters
        self.removed += other.removed
        self.repaired += other.repaired
        self.errors = [*self.errors, *other.errors][:MAX_REPORTED]

    def count(self, text: str, clean: bool) -> None:
        """Count a kept document; in clean text, each white space separates two words."""
        self.documents += 1
        self.words += text.count(" ") + text.count("\n") + 1 if clean else len(text.split())
        self.characters += len(text)

    @property
    def notes(self) -> list[str]:
        """The errors of the first bad rows, and their number."""
        return bad_row_notes(self.removed[BAD_ROW], self.errors, SKIPPED)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        counters = {
            key: dict(sorted(getattr(self, key).items())) for key in ("removed", "repaired")
        }
        return {**vars(self), **counters}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CorpusReport:
        """Build a report from the values of `as_dict`."""
        counters = {key: Counter(values[key]) for key in ("removed", "repaired")}
        return cls(**{**values, **counters})


class CorpusPosition(NamedTuple):
    """A position between two documents."""

    source: int
    document: int  # of that source


START = CorpusPosition(0, 0)
SOURCE_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class DocumentBatch:
    """Consecutive raw documents, all of the same source."""

    texts: list[str]
    end: CorpusPosition  # where the next batch begins
    repaired: Counter[str]  # by the reader
    bytes_read: int  # of the whole corpus, up to the end of this batch
    source: int | None = None  # its number, if the sources of the corpus have names
    errors: list[str] = field(default_factory=list)  # of bad rows, which are skipped

    def report(self) -> CorpusReport:
        """Return a report with the repairs and bad rows of the reader."""
        bad = Counter({BAD_ROW: len(self.errors)} if self.errors else {})
        return CorpusReport(removed=bad, repaired=self.repaired, errors=self.errors[:MAX_REPORTED])


class Corpus:
    """Documents from files, folders, globs, standard input (`-`), `datasets:NAME` or memory.

    In memory they are a list of texts or of rows, or a table. A string with white space that names
    no file is a text. A mapping of names to any of these, such as `{"en": "en.txt", "ha": ["a.txt",
    "b.txt"]}`, is a corpus of several sources.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), "two.txt")
    >>> _ = path.write_text("One document,\\non two lines.\\n\\nAnother&nbsp;one.\\n")
    >>> list(Corpus([path]))
    ['One document,\\non two lines.', 'Another one.']
    """

    def __init__(
        self,
        paths: Data,
        reading: ReadOptions = ReadOptions(),
        *,
        clean: bool = True,
        name: str = "paths",  # in error messages
    ) -> None:
        self.reading = reading
        self.clean = clean
        groups = _named_sources(paths, reading)
        self.source_names = list(groups)
        found = [
            find_sources(corpus_sources(data, f"{name}[{source!r}]"), reading)
            for source, data in groups.items()
        ] or [find_sources(corpus_sources(paths, name), reading)]
        self.sources = [file for files, _ in found for file in files]
        self.source_numbers = [i for i, (files, _) in enumerate(found) for _ in files]
        self.skipped_files = sum(skipped for _, skipped in found)
        self.size = sum(source.size for source in self.sources)  # bytes, 0 if unknown

    def __iter__(self) -> Iterator[str]:
        """Yield the cleaned documents in this process; it is an error if all rows are bad."""
        report, found = CorpusReport(), False
        for batch in self.batches():
            report.add(batch.report())
            for text in clean_texts(batch.texts, self.clean, report):
                found = found or bool(text)
                yield from [text] * bool(text)
        if report.errors and not found:
            raise no_documents(self, report)

    def batches(
        self, start: CorpusPosition = START, characters: int = 1 << 20
    ) -> Iterator[DocumentBatch]:
        """Yield batches of documents with about `characters` characters each, from a position on.

        The batches after a position do not depend on where reading started.
        """
        numbers = range(start.source, len(self.sources))
        for source, group in groupby(numbers, self.source_numbers.__getitem__):
            files = list(group)
            owner = source if self.source_names else None
            texts: list[str] = []
            errors: list[str] = []
            size = 0
            tally: Counter[str] = Counter()
            documents = partial(self.documents, files, tally)
            for found in interleave_errors(documents, needs_valid=False):
                if isinstance(found, InputError):
                    errors.append(str(found))
                    continue
                position, text, bytes_read = found
                if position <= start:  # processed before
                    tally.clear()
                    errors.clear()
                    continue
                texts.append(text)
                size += len(text)
                if size >= characters:
                    yield DocumentBatch(texts, position, tally.copy(), bytes_read, owner, errors)
                    texts, errors, size = [], [], 0
                    tally.clear()
            if texts or tally or errors:
                end = CorpusPosition(files[-1] + 1, 0)
                done = self._bytes_before(end.source)
                yield DocumentBatch(texts, end, tally, done, owner, errors)

    def _bytes_before(self, file: int) -> int:
        return sum(source.size for source in self.sources[:file])

    def documents(
        self, files: Sequence[int], tally: Counter[str], report: Bad
    ) -> Iterator[tuple[CorpusPosition, str, int]]:
        """Yield the documents of files; bad rows are reported, or an error if strict."""
        bad = raise_error if self.reading.strict else report
        done = self._bytes_before(files[0])
        for number in files:
            source = self.sources[number]
            with source.open() as raw:
                for index, text in enumerate(source.documents(raw, self.reading, tally, bad), 1):
                    here = raw.tell() if source.size else 0
                    yield CorpusPosition(number, index), text, done + here
            done += source.size


def _named_sources(data: Data, reading: ReadOptions) -> Mapping[str, Data]:
    """Return the named sources of a corpus, if it is neither a dict of columns nor of splits."""
    if not isinstance(data, Mapping) or reading.column in data or hasattr(data, "column_names"):
        return {}
    for name in data:
        if not isinstance(name, str) or not SOURCE_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot name a source: use letters, digits, '_', '-' and '.' only."
            )
    return data


def clean_texts(texts: Iterable[str], wanted: bool, report: CorpusReport) -> Iterator[str]:
    """Clean texts if `wanted`, and count repairs; a text without content becomes empty."""
    for text in texts:
        if wanted:
            text, controls, markup = clean(text)
            report.repaired["control characters removed"] += controls
            report.repaired["pieces of markup removed"] += markup
        yield "" if is_invisible(text) else text


def no_documents(corpus: Corpus, report: CorpusReport, elsewhere: object = None) -> InputError:
    """Return the error for a corpus without documents, with the reasons of removal."""
    names = ", ".join(source.name for source in corpus.sources[:3])
    more = f" and {len(corpus.sources) - 3} more" if len(corpus.sources) > 3 else ""
    reasons = [f"{count:,} {why}" for why, count in sorted(report.removed.items())]
    reasons += ["the rest is used for validation"] if elsewhere else []
    return InputError(
        f"No documents are left of {names}{more} ({', '.join(reasons) or 'none found'})."
    )
