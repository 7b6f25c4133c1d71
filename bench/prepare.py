"""Preparing text for training: Firth against bare tokenisation by the `tokenizers` library.

Firth's side is all of `firth.prepare`: read the file, clean it, split sentences, tokenise, hash,
write shards. The peer's side is `Tokenizer.encode_batch` alone, with its own threads, on the same
documents in memory, 1,000 at a time; nothing is kept. Both use the same tokenizer and all cores,
take turns, and the best of each counts. The text is clean already, so both must find just as many
tokens.

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
from grown_text import documents, write_text
from measure import Measured, measure

import firth

VOCAB_SIZE = 8_000  # what 10 MB of Firth's own stories, misspelt, can fill
TOGETHER = 1000  # documents that the peer is given at once


class Timed(NamedTuple):
    """The best repeat of one side."""

    tokens: int
    seconds: float

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as folder:
        compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Train a tokenizer, let both sides use it in turns, and print how fast they were."""
    text = folder / "text.txt"
    write_text(options.text, options.megabytes, text)
    tokenizer, _ = firth.train_tokenizer([text], kind=options.kind, vocab_size=VOCAB_SIZE)
    tokenizer.save(folder / "tokenizer")
    texts = list(documents(text))
    own: list[Measured] = []
    peer: list[Timed] = []
    for _ in range(options.repeats):
        own.append(run_firth(text, folder))
        peer.append(run_peer(tokenizer.backend, texts))
    fastest = min(own, key=lambda measured: measured.seconds)
    best = Timed(fastest.result, fastest.seconds), min(peer, key=lambda timed: timed.seconds)
    _print_results(options, text.stat().st_size, *best, max(measured.peak for measured in own))


def run_firth(text: Path, folder: Path) -> Measured:
    """Firth's side, in a process of its own; the result is how many tokens it wrote."""
    out = folder / "shards"
    measured = measure(prepare, text, folder / "tokenizer", out)
    assert measured is not None
    shutil.rmtree(out)
    return measured


def prepare(text: Path, tokenizer: Path, out: Path) -> int:
    prepared = firth.prepare([text], tokenizer=tokenizer, out=out, valid_fraction=0)
    return prepared.splits["train"]["tokens"]


def run_peer(backend: tokenizers.Tokenizer, texts: list[str]) -> Timed:
    """The peer's side, in this process."""
    backend.encode_special_tokens = True  # a `[MASK]` in the text is text, as for Firth
    tokens = 0
    started = time.perf_counter()
    for start in range(0, len(texts), TOGETHER):
        batch = texts[start : start + TOGETHER]
        tokens += sum(map(len, backend.encode_batch(batch, add_special_tokens=False)))
    return Timed(tokens, time.perf_counter() - started)


def _print_results(
    options: argparse.Namespace, size: int, own: Timed, peer: Timed, peak: int
) -> None:
    print(f"{options.kind}, {size / 1e6:.1f} MB of text, best of {options.repeats}")
    print("system                     tokens  seconds   tokens/s   MB/s")
    for name, timed in (("firth.prepare", own), ("tokenizers, bare", peer)):
        print(
            f"{name:20}  {timed.tokens:11,}  {timed.seconds:7.2f}  {timed.speed:9,.0f}  "
            f"{size / 1e6 / timed.seconds:5.2f}"
        )
    print(f"peak RSS of firth.prepare, all processes: {peak / 1e9:.2f} GB")
    print(f"numbers of tokens: {'equal' if own.tokens == peer.tokens else 'NOT equal'}")
    print(f"ratio: {own.speed / peer.speed:.2f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", help="any corpus file; else Firth's stories")
    parser.add_argument("--megabytes", type=float, default=100)
    kinds = ("wordpiece", "bpe", "bpe-word", "unigram", "char")
    parser.add_argument("--kind", choices=kinds, default="wordpiece")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
