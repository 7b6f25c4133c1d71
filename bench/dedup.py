"""Remove near-duplicates: `firth prepare --dedup` against MinHashLSH of datasketch.

The documents have log-normal lengths like those of web pages (median: about 1,500 characters). They
consist of runs of 8 words drawn at random from a corpus, so no two are similar by chance. Every
tenth document is a copy of an earlier one in which up to 6 % of the words are replaced. A side
should find these copies and nothing else; recall and false positives are printed.

Both sides read the same JSONL file, ignore case and white space, and hash character 5-grams to 128
MinHash values in 32 bands of 4. A document is a duplicate if its estimated similarity to an earlier
one is at least 0.8. Both sides use all cores. Firth's time covers all that `firth prepare --dedup`
does before it tokenizes, including cleaning and signatures on disk. For datasketch, worker
processes compute the MinHashes, and the main process fills the index in memory. It runs twice: with
SHA-1, its default hash function, and with CRC-32, which is faster. The ratio is the seconds of the
faster one divided by Firth's.

    python bench/dedup.py
    python bench/dedup.py --text corpus.jsonl.xz --documents 1000000 --peer-documents 20000
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from grown_text import write_text
from measure import Measured, measure
from numpy.typing import NDArray

from firth.data.corpus import Corpus
from firth.data.dedup import KEEP, find_duplicates, open_fingerprints
from firth.jobs.part_duplicates import make_fingerprinter
from firth.utils.workers import ordered_map

MEDIAN_WORDS, SIGMA = 260, 1.0  # of a document's log-normal length
MIN_WORDS, MAX_WORDS = 40, 20_000
RUN_WORDS = 8  # consecutive words of the corpus
COPY_EVERY = 10  # one document in 10 is a copy
MAX_EDITED = 0.06  # fraction of a copy's words that are replaced
CORPUS_MEGABYTES = 20
NGRAM, NUM_PERM, BANDS, THRESHOLD = 5, 128, 32, 0.8  # Firth's settings
PEER_BATCH_SIZE = 500  # documents per task of datasketch's worker processes
MAX_CHECKED = 5000  # copies whose true similarity is computed

Flags = NDArray[np.bool_]  # (documents,) whether a document is a duplicate
Numbers = NDArray[np.int64]
Side = Callable[[Path], Flags]


def main() -> None:
    """Compare the sides, run Firth alone on more documents if requested, and print the ratios."""
    options = _options()
    if not find_spec("datasketch"):
        raise SystemExit("datasketch is not installed: run `make references`.")
    sides: dict[str, Side] = {"firth": run_firth, "datasketch": run_datasketch}
    sides["datasketch, CRC-32"] = run_datasketch_crc32
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as name:
        folder = Path(name)
        words = corpus_words(options.text, folder / "text.txt")
        own, *peers = compare(words, options.peer_documents, folder, sides)
        if options.documents > options.peer_documents:
            compare(words, options.documents, folder, {"firth": run_firth})
    print(f"ratio of CPU seconds: {min(peer.cpu for peer in peers) / own.cpu:.2f}")
    print(f"ratio: {min(peer.seconds for peer in peers) / own.seconds:.2f}")


def compare(
    words: list[str], documents: int, folder: Path, sides: dict[str, Side]
) -> list[Measured]:
    """Measure each side on the same documents, and print the results."""
    file = folder / "documents.jsonl"
    print(write_documents(words, documents, file))
    copies = np.array([number for number in range(documents) if is_copy(number)])
    checked = copies[:MAX_CHECKED]
    truth = np.array([similarity(words, number) for number in checked.tolist()])
    low, tenth, median = np.quantile(truth, (0, 0.1, 0.5))
    print(f"similarity of {len(truth):,} copies: min {low:.3f}, 10 % {tenth:.3f}, {median=:.3f}")
    print(
        "system              minutes  documents/s  CPU minutes  peak RSS    found  recall  "
        "recall at 0.9  false positives"
    )
    runs = []
    for name, side in sides.items():
        measured = measure(side, file)
        assert measured is not None
        _print_row(name, measured, copies, checked[truth >= 0.9])
        runs.append(measured)
    file.unlink()
    return runs


def _print_row(name: str, measured: Measured, copies: Numbers, similar: Numbers) -> None:
    """Print one side's row; `similar` are copies with a similarity of 0.9 or more."""
    flags: Flags = measured.result
    print(
        f"{name:18}  {measured.seconds / 60:7.2f}  {len(flags) / measured.seconds:11,.0f}  "
        f"{measured.cpu / 60:11.2f}  {measured.peak / 1e9:5.2f} GB  {flags.sum():7,}  "
        f"{flags[copies].mean():6.1%}  {flags[similar].mean():13.1%}  "
        f"{np.delete(flags, copies).sum():15,}",
        flush=True,
    )


# --- documents ----------------------------------------------------------------------------------


def corpus_words(text: str | None, file: Path) -> list[str]:
    """Return the words of a corpus; newlines stay inside words."""
    write_text(text, CORPUS_MEGABYTES, file)
    words = file.read_text(encoding="utf-8").split(" ")
    file.unlink()
    return words


def write_documents(words: list[str], documents: int, path: Path) -> str:
    """Write a JSONL file, one document at a time; return a description of it."""
    lengths = []
    with open(path, "w", encoding="utf-8") as file:
        for number in range(documents):
            text = " ".join(document_words(words, number))
            lengths.append(len(text))
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return (
        f"\n{documents:,} documents, {path.stat().st_size / 1e6:,.0f} MB, "
        f"characters: median {np.median(lengths):,.0f}, mean {np.mean(lengths):,.0f}"
    )


def is_copy(number: int) -> bool:
    """Return whether the document with this number is a copy of an earlier one."""
    return number % COPY_EVERY == COPY_EVERY - 1


def document_words(words: list[str], number: int) -> list[str]:
    """Return the words of a document, which depend only on its number and the corpus."""
    rng = Random(number)
    if not is_copy(number):
        length = min(max(rng.lognormvariate(math.log(MEDIAN_WORDS), SIGMA), MIN_WORDS), MAX_WORDS)
        starts = [rng.randrange(len(words) - RUN_WORDS) for _ in range(round(length / RUN_WORDS))]
        return [word for start in starts for word in words[start : start + RUN_WORDS]]
    copy = document_words(words, original(number))
    edits = max(1, round(rng.uniform(0, MAX_EDITED) * len(copy)))
    for position in rng.sample(range(len(copy)), edits):
        copy[position] = rng.choice(words)
    return copy


def original(number: int) -> int:
    """Return the number of the document that a copy was made from."""
    earlier = Random(~number).randrange(number)
    return earlier - is_copy(earlier)


def similarity(words: list[str], number: int) -> float:
    """Return the true Jaccard similarity of a copy and its original."""
    one, other = (ngrams(" ".join(document_words(words, n))) for n in (number, original(number)))
    return len(one & other) / len(one | other)


def ngrams(text: str) -> set[bytes]:
    """Return the character n-grams of a text, without case and repeated white space."""
    folded = " ".join(text.casefold().split())
    return {folded[start : start + NGRAM].encode() for start in range(len(folded) - NGRAM + 1)}


# --- sides --------------------------------------------------------------------------------------


def run_firth(file: Path) -> Flags:
    """Find duplicates as `firth prepare --dedup` does."""
    scratch, make = file.parent / "fingerprints", partial(make_fingerprinter, True)
    with open_fingerprints(scratch) as append:
        for exact, near, _ in ordered_map(make, Corpus([file]).batches()):
            append(exact, near)
    return find_duplicates(scratch) != KEEP


def run_datasketch(file: Path, hash_function: Any = None) -> Flags:
    """Find duplicates with an index of MinHashes; look each document up before it is added."""
    from datasketch import LeanMinHash, MinHashLSH

    index = MinHashLSH(num_perm=NUM_PERM, params=(BANDS, NUM_PERM // BANDS))
    rows: list[LeanMinHash] = []
    flags = []
    with Pool() as pool:
        for batch in pool.imap(partial(minhashes, file, hash_function), line_blocks(file)):
            for row in batch:
                estimates = (row.jaccard(rows[other]) for other in index.query(row))
                flags.append(any(estimate >= THRESHOLD for estimate in estimates))
                index.insert(len(rows), row, check_duplication=False)
                rows.append(row)
    return np.array(flags)


def run_datasketch_crc32(file: Path) -> Flags:
    """Find duplicates with CRC-32 in place of SHA-1."""
    return run_datasketch(file, zlib.crc32)


def line_blocks(file: Path) -> Iterator[tuple[int, int]]:
    """Yield the start and the bytes of each block of lines, which a worker reads itself."""
    start = 0
    with open(file, "rb") as lines:
        while size := sum(map(len, islice(lines, PEER_BATCH_SIZE))):
            yield start, size
            start += size


def minhashes(file: Path, hash_function: Any, block: tuple[int, int]) -> list[Any]:
    """Return the MinHashes of the documents in a block of lines."""
    from datasketch import LeanMinHash, MinHash

    with open(file, "rb") as lines:
        lines.seek(block[0])
        texts = [json.loads(line)["text"] for line in lines.read(block[1]).splitlines()]
    made = MinHash.generator(map(ngrams, texts), num_perm=NUM_PERM, hashfunc=hash_function)
    return [LeanMinHash(minhash) for minhash in made]


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", help="corpus file to draw words from (default: Firth's stories)")
    parser.add_argument(
        "--peer-documents",
        type=int,
        default=20_000,
        help="number of documents for both sides (default: 20,000)",
    )
    parser.add_argument(
        "--documents", type=int, default=0, help="number of documents for a run of Firth alone"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
