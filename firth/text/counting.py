"""How often each word stands in a corpus: all cores, bounded memory, the same every time.

Learning a vocabulary needs word counts, not text. Text is cut at white space, which is fast, the
distinct pieces are counted, and only those go through the tokenizer's own normaliser and
pre-tokenizer. What does not fit in memory waits, sorted, on the disk.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import IO

import tokenizers

from firth.text.corpus import Batch, Corpus, Report, cleaned, no_documents
from firth.workers import ordered_map

MEMORY = 200 << 20  # about the bytes of counts that are kept in memory before they are written out
ENTRY = 150  # bytes of one count beside its characters
BATCH_CHARACTERS = 4 << 20  # larger batches repeat fewer words to the process that adds them up
MAX_CHARACTERS = 48 << 20  # of distinct words that are handed to a learner

# Every pre-tokenizer here cuts before the last white space of a run (Unicode's White_Space).
_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
PIECE = re.compile(f"[{_SPACE}]?[^{_SPACE}]+|[{_SPACE}]+(?=[{_SPACE}][^{_SPACE}])|[{_SPACE}]+")

Progress = Callable[[str, int, int], None]  # (what, done, of how much)


class Counts:
    """Counts of strings that grow beyond memory into a folder, in sorted runs.

    >>> counts = Counts(Path("unused by so few"))
    >>> counts.add({"the": 2, "bat": 1}); counts.add({"the": 1})
    >>> list(counts.items())
    [('bat', 1), ('the', 3)]
    """

    def __init__(self, folder: Path, memory: int = MEMORY) -> None:
        self.folder = folder
        self.memory = memory
        self.counts: Counter[str] = Counter()
        self.characters = 0
        self.runs: list[Path] = []

    def add(self, counts: dict[str, int]) -> None:
        """Count these in; now and then, write what has come together to the disk."""
        known = len(self.counts)
        self.counts.update(counts)
        # New strings are taken to be as long as all of these are on average.
        mean = sum(map(len, counts)) / max(1, len(counts))
        self.characters += int(mean * (len(self.counts) - known))
        if self.characters + ENTRY * len(self.counts) > self.memory:
            self._write_run()

    def items(self) -> Iterator[tuple[str, int]]:
        """Every string and its count, sorted."""
        if not self.runs:
            yield from sorted(self.counts.items())
            return
        if self.counts:
            self._write_run()
        merged = heapq.merge(*map(_read_run, self.runs))
        for string, group in groupby(merged, key=itemgetter(0)):
            yield string, sum(count for _, count in group)

    def _write_run(self) -> None:
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{len(self.runs)}.jsonl"
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
            for rows in _chunks(sorted(self.counts.items()), 1000):
                file.write(json.dumps(rows) + "\n")
        self.runs.append(path)
        self.counts = Counter()
        self.characters = 0


def _read_run(path: Path) -> Iterator[tuple[str, int]]:
    file: IO[str]
    with open(path, encoding="utf-8", errors="surrogatepass") as file:
        for line in file:
            yield from ((string, count) for string, count in json.loads(line))


def _chunks(items: Iterable[tuple[str, int]], size: int) -> Iterator[list[tuple[str, int]]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def count_words(
    corpus: Corpus,
    backend: tokenizers.Tokenizer,
    scratch: Path,
    workers: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Counts, Report]:
    """Count the words of a corpus as this tokenizer's normaliser and pre-tokenizer see them.

    Counts that do not fit in memory lie in the folder `scratch`, for as long as it is there.
    """
    pieces = Counts(scratch / "pieces")
    report = Report()
    report.repaired["files of unknown kind skipped"] += corpus.skipped_files
    done: list[int] = []
    batches = _watched(corpus.batches(characters=BATCH_CHARACTERS), done)
    for counts, part in ordered_map(partial(_piece_counter, corpus.clean), batches, workers):
        pieces.add(counts)
        report.add(part)
        progress("counting words", done[0], corpus.size)
    if not report.documents:
        raise no_documents(corpus, report)
    words = Counts(scratch / "words")
    chunks = _chunks(pieces.items(), 20_000)
    for counts in ordered_map(partial(_word_counter, backend.to_str()), chunks, workers):
        words.add(counts)
    return words, report


def _watched(batches: Iterable[Batch], done: list[int]) -> Iterator[Batch]:
    for batch in batches:
        done[:] = [batch.bytes_read]
        yield batch


def _piece_counter(clean: bool) -> Callable[[Batch], tuple[Counter[str], Report]]:
    cut = _cut_clean if clean else _cut

    def count(batch: Batch) -> tuple[Counter[str], Report]:
        report = Report(repaired=batch.repaired)
        texts = list(cleaned(batch.texts, clean, report))
        for text in texts:
            if text:
                report.count(text, clean)
            else:
                report.removed["empty"] += 1
        return cut(filter(None, texts)), report

    return count


def _cut(texts: Iterable[str]) -> Counter[str]:
    """Count the pieces of any text: white space stays at the front of the word behind it."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(PIECE.findall(text))
    return counts


def _cut_clean(texts: Iterable[str]) -> Counter[str]:
    """The same, twice as fast, for clean text: its white space is single spaces and newlines."""
    counts: Counter[str] = Counter()
    rest: Counter[str] = Counter()
    for text in texts:
        first, *others = text.replace("\n", " \n").split(" ")
        counts[first] += 1
        rest.update(others)
    for piece, times in rest.items():
        counts[piece if piece[0] == "\n" else " " + piece] += times
    return counts


def _word_counter(tokenizer: str) -> Callable[[list[tuple[str, int]]], Counter[str]]:
    backend = tokenizers.Tokenizer.from_str(tokenizer)
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    split = backend.pre_tokenizer.pre_tokenize_str

    def count(pieces: list[tuple[str, int]]) -> Counter[str]:
        words: Counter[str] = Counter()
        for piece, times in pieces:
            for word, _ in split(normalize(piece)):
                words[word] += times
        return words

    return count


def frequent(
    counts: Counts, max_characters: int = MAX_CHARACTERS
) -> tuple[list[str], list[int], int]:
    """All words and counts, or the most frequent ones that hold at most so many characters.

    Returned last is how often a word must stand in the text to be among them.
    """
    characters: Counter[int] = Counter()  # by count
    for word, times in counts.items():
        characters[times] += len(word)
    least, held = 1, characters.total()
    while held > max_characters and least < max(characters):
        held -= characters[least]
        least += 1
    rows = [(word, times) for word, times in counts.items() if times >= least]
    return [word for word, _ in rows], [times for _, times in rows], least
