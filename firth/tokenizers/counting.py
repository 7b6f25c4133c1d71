"""Count the words of a corpus: in parallel, with bounded memory, and deterministically.

Training a tokenizer needs word counts, not text. Text is split at white space, which is fast, and
only the distinct pieces go through the tokenizer's own normalizer and pre-tokenizer. Counts that do
not fit in memory are sorted on disk.
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

from firth.data.corpus import Corpus, CorpusReport, DocumentBatch, clean_texts, no_documents
from firth.data.mixture import smoothed_mixture
from firth.tokenizers.normalization import is_nfc, without_nfc
from firth.utils.workers import ordered_map

MEMORY = 200 << 20  # approximate bytes of counts in memory before they are written to disk
ENTRY = 150  # bytes of one count in addition to its characters
BATCH_CHARACTERS = 4 << 20  # the larger, the fewer duplicate counts are sent between processes
MAX_CHARACTERS = 48 << 20  # of the distinct words to train on

# Every pre-tokenizer here splits before the last white space of a run (Unicode's White_Space).
_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
PIECE = re.compile(f"[{_SPACE}]?[^{_SPACE}]+|[{_SPACE}]+(?=[{_SPACE}][^{_SPACE}])|[{_SPACE}]+")

Progress = Callable[[str, int, int], None]  # (what, done, total)
CountedPieces = tuple[int | None, Counter[str], CorpusReport]  # number of the source, counts


class WordCounts:
    """Counts of strings; if they exceed the memory, sorted runs are written to a folder.

    >>> counts = WordCounts(Path("unused"))
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
        """Add counts, and write a run to disk when the memory limit is reached."""
        known = len(self.counts)
        self.counts.update(counts)
        # An estimate: new strings are as long as the average.
        mean = sum(map(len, counts)) / max(1, len(counts))
        self.characters += int(mean * (len(self.counts) - known))
        if self.characters + ENTRY * len(self.counts) > self.memory:
            self._write_run()

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield every string and its count, sorted."""
        if not self.runs:
            yield from sorted(self.counts.items(), key=itemgetter(0))
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
            for rows in _chunks(sorted(self.counts.items(), key=itemgetter(0)), 1000):
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
    alpha: float | None = None,
    counted: Iterable[CountedPieces] | None = None,
) -> tuple[WordCounts, CorpusReport]:
    """Count the words of a corpus as split by this tokenizer's normalizer and pre-tokenizer.

    Counts that do not fit in memory are written to the folder `scratch`. With `alpha`, the counts
    of the named sources are scaled to the proportions of `smoothed_mixture`. `counted` are counts
    that were made elsewhere.
    """
    names = ["all"] if alpha is None else corpus.source_names
    pieces = {name: WordCounts(scratch / f"pieces-{name}", MEMORY // len(names)) for name in names}
    sizes = dict.fromkeys(names, 0)  # words of each source
    report = CorpusReport()
    report.repaired["files of unknown kind skipped"] += corpus.skipped_files
    for source, counts, part in counted or _count_batches(corpus, workers, progress):
        name = names[0 if alpha is None else source or 0]
        pieces[name].add(counts)
        sizes[name] += part.words
        report.add(part)
    if not report.documents:
        raise no_documents(corpus, report)
    words = WordCounts(scratch / "words")
    scaled = (
        (piece, round(times * weight))
        for name, weight in _source_weights(sizes, 1.0 if alpha is None else alpha).items()
        for piece, times in pieces[name].items()
    )
    chunks = _chunks(scaled, 20_000)
    for counts in ordered_map(partial(word_counter, backend.to_str()), chunks, workers):
        words.add(counts)
    return words, report


def _source_weights(sizes: dict[str, int], alpha: float) -> dict[str, float]:
    """Return what to multiply the counts of each source with; the least is 1.

    >>> _source_weights({"en": 1600, "ha": 100}, alpha=0.5)
    {'en': 1.0, 'ha': 4.0}
    """
    factors = {name: part / sizes[name] for name, part in smoothed_mixture(sizes, alpha).items()}
    return {name: factor / min(factors.values()) for name, factor in factors.items()}


def _count_batches(
    corpus: Corpus, workers: int | None, progress: Progress
) -> Iterator[CountedPieces]:
    done: list[int] = []
    batches = _with_progress(corpus.batches(characters=BATCH_CHARACTERS), done)
    for counted in ordered_map(partial(piece_counter, corpus.clean), batches, workers):
        yield counted
        progress("counting words", done[0], corpus.size)


def _with_progress(batches: Iterable[DocumentBatch], done: list[int]) -> Iterator[DocumentBatch]:
    for batch in batches:
        done[:] = [batch.bytes_read]
        yield batch


def piece_counter(clean: bool) -> Callable[[DocumentBatch], CountedPieces]:
    """Return a function that counts the pieces of a batch of documents."""
    cut = _cut_clean if clean else _cut

    def count(batch: DocumentBatch) -> CountedPieces:
        report = batch.report()
        texts = list(clean_texts(batch.texts, clean, report))
        for text in texts:
            if text:
                report.count(text, clean)
            else:
                report.removed["empty"] += 1
        return batch.source, cut(filter(None, texts)), report

    return count


def _cut(texts: Iterable[str]) -> Counter[str]:
    """Count the pieces of any text; each word keeps the white space before it."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(PIECE.findall(text))
    return counts


def _cut_clean(texts: Iterable[str]) -> Counter[str]:
    """Count the pieces of clean text, whose white space is single spaces and newlines.

    Same counts as `_cut`, twice as fast.
    """
    counts: Counter[str] = Counter()
    rest: Counter[str] = Counter()
    for text in texts:
        first, *others = text.replace("\n", " \n").split(" ")
        counts[first] += 1
        rest.update(others)
    for piece, times in rest.items():
        counts[piece if piece[0] == "\n" else " " + piece] += times
    return counts


def word_counter(tokenizer: str) -> Callable[[list[tuple[str, int]]], Counter[str]]:
    """Return a function that counts the words of counted pieces; the tokenizer is JSON."""
    backend = tokenizers.Tokenizer.from_str(tokenizer)
    normalize = _normalize(backend.normalizer)
    normalize_nfc = _normalize(without_nfc(backend.normalizer))  # faster
    split = backend.pre_tokenizer.pre_tokenize_str

    def count(pieces: list[tuple[str, int]]) -> Counter[str]:
        words: Counter[str] = Counter()
        for piece, times in pieces:
            normalized = normalize_nfc(piece) if is_nfc(piece) else normalize(piece)
            for word, _ in split(normalized):
                words[word] += times
        return words

    return count


def _normalize(normalizer: tokenizers.normalizers.Normalizer | None) -> Callable[[str], str]:
    return normalizer.normalize_str if normalizer else str


def most_frequent_words(
    counts: WordCounts, max_characters: int = MAX_CHARACTERS
) -> tuple[list[str], list[int], int]:
    """Return the most frequent words within `max_characters`, their counts and the minimum."""
    characters: Counter[int] = Counter()  # number of characters of the words with a given count
    for word, times in counts.items():
        characters[times] += len(word)
    min_count, total = 1, characters.total()
    while total > max_characters and min_count < max(characters):
        total -= characters[min_count]
        min_count += 1
    rows = [(word, times) for word, times in counts.items() if times >= min_count]
    return [word for word, _ in rows], [times for _, times in rows], min_count
