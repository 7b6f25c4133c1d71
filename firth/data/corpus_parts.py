"""Parts of a corpus: blocks of documents that machines process independently of each other.

A block is a run of about a million characters of documents of one file. Where blocks begin does not
depend on the number of parts. The parts share the bytes of all files evenly: a file that lies
within the range of one part is read by that part alone; of a file that several parts share, each
reads all, and keeps its own blocks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from firth.data.corpus import START, Corpus, DocumentBatch
from firth.utils.errors import InputError, UsageError
from firth.utils.streams import interleave_errors

BLOCK_CHARACTERS = 1 << 20
PART_BYTES, MAX_PARTS = 32 << 20, 4096  # of `default_parts`
PARTS_PER_FILE = 8  # each part reads the whole of a file that it shares with others
# 2^64 divided by the golden ratio: multiples of it modulo 2^64 are spread evenly.
_GOLDEN, _SCALE = 0x9E3779B97F4A7C15, 1 << 64


@dataclass(frozen=True)
class Part:
    """One of `count` parts, numbered from 1.

    >>> str(Part.parse("2/8")), Part(2, 8).name
    ('2/8', '00002-of-00008')
    """

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def name(self) -> str:
        """The part in the name of a file."""
        return f"{self.number:05}-of-{self.count:05}"

    @classmethod
    def parse(cls, text: str) -> Part:
        """Parse a part such as "2/8"."""
        match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text)
        part = cls(*map(int, match.groups())) if match else cls(0, 0)
        if not 1 <= part.number <= part.count:
            raise UsageError(f"--part takes a number from 1/N to N/N, such as 1/8, not {text!r}.")
        return part


def default_parts(corpora: Sequence[Corpus]) -> int:
    """Return a number of parts for a text of this size."""
    files = sum(len(corpus.sources) for corpus in corpora)
    size = sum(corpus.size for corpus in corpora)
    return max(1, min(-(-size // PART_BYTES), PARTS_PER_FILE * files, MAX_PARTS))


class FilePlace(NamedTuple):
    """A file of one of several corpora."""

    corpus: int
    file: int


@dataclass(frozen=True)
class DocumentBlock:
    """Consecutive documents of a file."""

    place: FilePlace
    number: int  # of the block in its file
    texts: list[str]
    repaired: Counter[str]  # by the reader
    errors: list[str]  # of bad rows, which are skipped
    source: int | None  # number of the named source
    bytes_read: int  # of the files of this part

    @property
    def key(self) -> tuple[int, int, int]:
        """The position of the block among all blocks of all corpora."""
        return (*self.place, self.number)


class PartReader:
    """Read the blocks of one part of several corpora; afterwards, `counts` has those of each file.

    >>> texts = Corpus(["A bat flew.", "A cat sat."])
    >>> [block.texts for block in PartReader([texts], Part(1, 1))]
    [['A bat flew.', 'A cat sat.']]
    """

    def __init__(self, corpora: Sequence[Corpus], part: Part) -> None:
        self.corpora = corpora
        self.part = part
        self.counts: dict[FilePlace, int] = {}  # blocks of each file that was read
        self._files: dict[FilePlace, Callable[[int], bool]] = {}
        sizes = {
            FilePlace(c, f): max(1, source.size)
            for c, corpus in enumerate(corpora)
            for f, source in enumerate(corpus.sources)
        }
        total, start = sum(sizes.values()), 0
        for place, size in sizes.items():
            owner = partial(_owner, start, size, total, part.count)
            if owner(0) <= part.number - 1 <= owner(_SCALE - 1):
                self._files[place] = partial(_is_own, owner, part.number - 1)
            start += size
        self.size = sum(sizes[place] for place in self._files)  # bytes

    def __iter__(self) -> Iterator[DocumentBlock]:
        done = 0
        for place, is_own in self._files.items():
            yield from self._file_blocks(place, is_own, done)
            done += self.corpora[place.corpus].sources[place.file].size

    @property
    def places(self) -> list[FilePlace]:
        """The files that this part reads."""
        return list(self._files)

    def _file_blocks(
        self, place: FilePlace, is_own: Callable[[int], bool], done: int
    ) -> Iterator[DocumentBlock]:
        corpus = self.corpora[place.corpus]
        source = corpus.source_numbers[place.file] if corpus.source_names else None
        before = sum(file.size for file in corpus.sources[: place.file])
        tally: Counter[str] = Counter()
        texts: list[str] = []
        errors: list[str] = []
        number = size = count = read = 0
        own = is_own(0)
        documents = partial(corpus.documents, [place.file], tally)
        for found in interleave_errors(documents, needs_valid=False):
            if isinstance(found, InputError):
                errors.append(str(found))
                continue
            _, text, read = found
            size, count = size + len(text), count + 1
            if own:
                texts.append(text)
            if size >= BLOCK_CHARACTERS:
                if own:
                    here = done + read - before
                    yield DocumentBlock(place, number, texts, tally.copy(), errors, source, here)
                texts, errors, size, count, number = [], [], 0, 0, number + 1
                tally.clear()
                own = is_own(number)
        if count or tally or errors:
            if own:
                yield DocumentBlock(
                    place, number, texts, tally, errors, source, done + read - before
                )
            number += 1
        self.counts[place] = number


def _owner(start: int, size: int, total: int, parts: int, offset: int) -> int:
    """Return the part, from 0, of a byte; `offset` is its place in its file, as a fraction."""
    return (start * _SCALE + size * offset) * parts // (total * _SCALE)


def _is_own(owner: Callable[[int], int], part: int, block: int) -> bool:
    return owner(block * _GOLDEN % _SCALE) == part


def grouped(blocks: Iterable[DocumentBlock]) -> Iterator[list[DocumentBlock]]:
    """Group neighbouring blocks of small files that have the same corpus and the same source."""
    group: list[DocumentBlock] = []
    size = 0
    for block in blocks:
        other = group and (block.place.corpus, block.source) != (
            group[0].place.corpus,
            group[0].source,
        )
        if group and (other or size >= BLOCK_CHARACTERS):
            yield group
            group, size = [], 0
        group.append(block)
        size += sum(map(len, block.texts))
    if group:
        yield group


def document_batch(blocks: Sequence[DocumentBlock]) -> DocumentBatch:
    """Join blocks of the same source to one batch of documents."""
    return DocumentBatch(
        [text for block in blocks for text in block.texts],
        START,
        sum((block.repaired for block in blocks), Counter()),
        blocks[-1].bytes_read,
        blocks[0].source,
        [error for block in blocks for error in block.errors],
    )
