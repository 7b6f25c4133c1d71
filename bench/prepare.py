"""Prepare text for training: `firth.prepare` against `Tokenizer.encode_batch` of `tokenizers`.

Firth's time covers all of `firth.prepare`: read the file, clean it, split sentences, tokenize,
hash, write shards. The peer's time covers only `encode_batch`, with its own threads, on the same
documents in memory, 1,000 at a time; it stores nothing. Both use the same tokenizer and all cores
and run in turn; the best repeat counts. The text is clean, so both must find the same number of
tokens, which is checked and printed. Tokens/s, MB/s and Firth's peak RSS are printed.

    python bench/prepare.py
    python bench/prepare.py --text corpus.jsonl.xz --megabytes 100 --kind bpe --repeats 5
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import tokenizers
from grown_text import read_documents, write_text
from measure import Measured, measure

import firth

VOCAB_SIZE = 8_000  # as large as 10 MB of Firth's stories with misspellings allow
PEER_BATCH_SIZE = 1000  # documents per call of `encode_batch`


class Result(NamedTuple):
    """Tokens and seconds of one run."""

    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens per second."""
        return self.tokens / self.seconds


def main() -> None:
    """Run the comparison in a temporary folder."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Train a tokenizer, measure both sides in turn, and print the results."""
    text = folder / "text.txt"
    write_text(options.text, options.megabytes, text)
    tokenizer, _ = firth.train_tokenizer([text], kind=options.kind, vocab_size=VOCAB_SIZE)
    tokenizer.save(folder / "tokenizer")
    texts = list(read_documents(text))
    firth_runs: list[Measured] = []
    peer_runs: list[Result] = []
    for _ in range(options.repeats):
        firth_runs.append(run_firth(text, folder))
        peer_runs.append(run_tokenizers(tokenizer.backend, texts))
    fastest = min(firth_runs, key=lambda measured: measured.seconds)
    best = Result(fastest.result, fastest.seconds), min(peer_runs, key=lambda run: run.seconds)
    _print_results(
        options, text.stat().st_size, *best, max(measured.peak for measured in firth_runs)
    )


def run_firth(text: Path, folder: Path) -> Measured:
    """Measure `firth.prepare` in a process of its own; the result is the number of tokens."""
    out = folder / "shards"
    measured = measure(prepare_shards, text, folder / "tokenizer", out)
    assert measured is not None
    shutil.rmtree(out)
    return measured


def prepare_shards(text: Path, tokenizer: Path, out: Path) -> int:
    """Write a text as shards; return the number of tokens."""
    manifest = firth.prepare([text], tokenizer=tokenizer, out=out, valid_fraction=0)
    return manifest.splits["train"]["tokens"]


def run_tokenizers(backend: tokenizers.Tokenizer, texts: list[str]) -> Result:
    """Measure `encode_batch` on all documents, in this process."""
    backend.encode_special_tokens = True  # treat a `[MASK]` in the text as plain text, like Firth
    tokens = 0
    started = time.perf_counter()
    for start in range(0, len(texts), PEER_BATCH_SIZE):
        batch = texts[start : start + PEER_BATCH_SIZE]
        tokens += sum(map(len, backend.encode_batch(batch, add_special_tokens=False)))
    return Result(tokens, time.perf_counter() - started)


def _print_results(
    options: argparse.Namespace, size: int, firth_result: Result, peer_result: Result, peak: int
) -> None:
    """Print the table, Firth's peak RSS and the ratio."""
    print(f"{options.kind}, {size / 1e6:.1f} MB of text, best of {options.repeats} repeats")
    print("system                     tokens  seconds   tokens/s   MB/s")
    for name, result in (("firth.prepare", firth_result), ("encode_batch", peer_result)):
        print(
            f"{name:20}  {result.tokens:11,}  {result.seconds:7.2f}  "
            f"{result.tokens_per_second:9,.0f}  {size / 1e6 / result.seconds:5.2f}"
        )
    print(f"peak RSS of firth.prepare, all processes: {peak / 1e9:.2f} GB")
    print(
        f"number of tokens: {'equal' if firth_result.tokens == peer_result.tokens else 'NOT equal'}"
    )
    print(f"ratio: {firth_result.tokens_per_second / peer_result.tokens_per_second:.2f}")


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", help="corpus file (default: Firth's stories)")
    parser.add_argument(
        "--megabytes", type=float, default=100, help="size of the text in MB (default: 100)"
    )
    kinds = ("wordpiece", "bpe", "bpe-word", "unigram", "char")
    parser.add_argument(
        "--kind", choices=kinds, default="wordpiece", help="tokenizer (default: wordpiece)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed runs of each side (default: 3)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
