"""A corpus: raw documents in a fixed order, cut into batches, and a report of what became of them.

Reading is one stream in one process; cleaning happens where the batches go, on all cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from firth.errors import InputError
from firth.text.cleaning import clean
from firth.text.readers import Reading, find_sources


@dataclass
class Report:
    """What was read, what was kept, what was removed or repaired, and why."""

    documents: int = 0  # kept
    words: int = 0  # runs of anything but white space
    characters: int = 0
    removed: Counter[str] = field(default_factory=Counter)  # documents, by reason
    repaired: Counter[str] = field(default_factory=Counter)  # anything smaller, by kind

    def add(self, other: Report) -> None:
        """Count another part of the same corpus in."""
        self.documents += other.documents
        self.words += other.words
        self.characters += other.characters
        self.removed += other.removed
        self.repaired += other.repaired

    def count(self, text: str, clean: bool) -> None:
        """Count a document that is kept; in clean text each white space parts two words."""
        self.documents += 1
        self.words += text.count(" ") + text.count("\n") + 1 if clean else len(text.split())
        self.characters += len(text)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {**vars(self), "removed": dict(self.removed), "repaired": dict(self.repaired)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Report:
        """The inverse of `as_dict`."""
        counters = {key: Counter(values[key]) for key in ("removed", "repaired")}
        return cls(**{**values, **counters})


class Position(NamedTuple):
    """A place between two documents."""

    source: int
    document: int  # of that source


START = Position(0, 0)


@dataclass(frozen=True)
class Batch:
    """Some neighbouring raw documents."""

    texts: list[str]
    end: Position  # where the next batch begins
    repaired: Counter[str]  # by the reader
    bytes_read: int  # of the whole corpus, up to the end of this batch


class Corpus:
    """Files, folders, globs, standard input (`-`) or `datasets:NAME`, as a stream of documents.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "two.txt")
    >>> _ = path.write_text("One document,\\non two lines.\\n\\nAnother&nbsp;one.\\n")
    >>> list(Corpus([path]))
    ['One document,\\non two lines.', 'Another one.']
    """

    def __init__(
        self, paths: Sequence[str | Path], reading: Reading = Reading(), *, clean: bool = True
    ) -> None:
        self.reading = reading
        self.clean = clean
        self.sources, self.skipped_files = find_sources(paths, reading)
        self.size = sum(source.size for source in self.sources)  # bytes, 0 if unknown

    def __iter__(self) -> Iterator[str]:
        """The cleaned documents, one by one, in this process."""
        report = Report()
        for batch in self.batches():
            yield from (text for text in cleaned(batch.texts, self.clean, report) if text)

    def batches(self, start: Position = START, characters: int = 1 << 20) -> Iterator[Batch]:
        """Neighbouring documents of about so many characters together, from a position on.

        The batches after a position do not depend on where reading began.
        """
        texts: list[str] = []
        size = 0
        tally: Counter[str] = Counter()
        for position, text, bytes_read in self._documents(start, tally):
            texts.append(text)
            size += len(text)
            if size >= characters:
                yield Batch(texts, position, tally.copy(), bytes_read)
                texts, size = [], 0
                tally.clear()
        if texts or tally:
            yield Batch(texts, Position(len(self.sources), 0), tally, self.size)

    def _documents(
        self, start: Position, tally: Counter[str]
    ) -> Iterator[tuple[Position, str, int]]:
        done = sum(source.size for source in self.sources[: start.source])
        for number, source in enumerate(self.sources[start.source :], start.source):
            skip = start.document if number == start.source else 0
            with source.open() as raw:
                for index, text in enumerate(source.documents(raw, self.reading, tally), 1):
                    if index <= skip:
                        tally.clear()  # repairs of documents that were dealt with before
                        continue
                    here = raw.tell() if source.size else 0
                    yield Position(number, index), text, done + here
            done += source.size


def cleaned(texts: Iterable[str], wanted: bool, report: Report) -> Iterator[str]:
    """Clean texts if wanted, counting repairs; what has no text left comes out empty."""
    for text in texts:
        if wanted:
            text, controls, markup = clean(text)
            report.repaired["control characters removed"] += controls
            report.repaired["pieces of markup removed"] += markup
        yield text if text and not text.isspace() else ""


def no_documents(corpus: Corpus, report: Report, elsewhere: object = None) -> InputError:
    """The error of a corpus from which nothing is left, with where it went."""
    names = ", ".join(source.name for source in corpus.sources[:3])
    more = f" and {len(corpus.sources) - 3} more" if len(corpus.sources) > 3 else ""
    went = [f"{count:,} {why}" for why, count in sorted(report.removed.items())]
    went += ["the rest is kept for validation"] if elsewhere else []
    return InputError(
        f"No documents are left of {names}{more} ({', '.join(went) or 'none there'})."
    )
