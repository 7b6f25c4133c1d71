"""Fit an n-gram model: time and memory of Firth, and its counting speed against NLTK.

The text is random: words follow Zipf's law, and half of them are determined by the previous word.
It has more distinct n-grams than real text. Firth counts n-grams of all orders and smooths them
(Kneser-Ney). NLTK's `NgramCounter` only counts, on a shorter text (`--peer-tokens`) sampled in the
same way, so no outputs are compared. (KenLM's estimator `lmplz` is not part of its Python package.)
Each runs in a process of its own. Times include the sampling. Seconds, CPU seconds and peak RSS are
printed; the ratio is that of the tokens per CPU second.

    python bench/ngram.py --tokens 1000000 --order 3
    python bench/ngram.py --tokens 100000000 --order 5 --peer-tokens 0
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from measure import Measured, measure

from firth.data.shards import MemoryShards, TokenizedDocuments
from firth.models.ngram.counting import bounded_text, count_ngrams
from firth.models.ngram.kneser_ney import KneserNey

VOCAB_SIZE, DOCUMENT_LENGTH = 50_000, 1000  # in tokens
BOS, EOS = VOCAB_SIZE, VOCAB_SIZE + 1


def sample_tokens(count: int) -> np.ndarray:
    """Sample words by Zipf's law; half of them are a function of the previous word."""
    rng, tokens = np.random.default_rng(0), np.empty(count, dtype=np.uint16)
    cumulative = np.cumsum(1.0 / np.arange(1, VOCAB_SIZE + 1))
    for start in range(0, count, 1 << 22):
        chunk = tokens[start : start + (1 << 22)]
        chunk[:] = np.searchsorted(cumulative, rng.random(len(chunk)) * cumulative[-1])
        determined = np.flatnonzero(rng.random(len(chunk) - 1) < 0.5)
        chunk[determined + 1] = chunk[determined].astype(np.int64) * 7919 % VOCAB_SIZE
    return tokens


def fit_firth(count: int, order: int) -> list[int]:
    """Count and smooth the n-grams with Firth; return the number of n-grams of each order."""
    tokens = sample_tokens(count)
    lengths = np.full(count // DOCUMENT_LENGTH, DOCUMENT_LENGTH)
    shards = MemoryShards(TokenizedDocuments(tokens, lengths, lengths), "random")
    text = bounded_text(shards, BOS, EOS, VOCAB_SIZE + 2)
    del shards, tokens
    with tempfile.TemporaryDirectory() as folder:
        counts = count_ngrams(text, order, VOCAB_SIZE + 2, Path(folder), lambda *_: None)
        del text
        predicted = np.arange(VOCAB_SIZE + 2) != BOS
        return [len(table.keys) for table in KneserNey(counts, BOS, predicted, print).smooth()]


def count_with_nltk(count: int, order: int) -> int:
    """Count the n-grams with NLTK; return their number."""
    from nltk.lm import NgramCounter
    from nltk.util import everygrams

    rows = sample_tokens(count).reshape(-1, DOCUMENT_LENGTH).tolist()
    padded = ([BOS, *row, EOS] for row in rows)
    return NgramCounter(everygrams(row, max_len=order) for row in padded).N()


def main() -> None:
    """Measure Firth and, unless `--peer-tokens` is 0, NLTK."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--tokens", type=int, default=1_000_000, help="length of Firth's text (default: 1M)"
    )
    parser.add_argument("--order", type=int, default=3, help="n of the n-grams (default: 3)")
    parser.add_argument(
        "--peer-tokens",
        type=int,
        default=200_000,
        help="length of NLTK's text (default: 200k); 0: do not run it",
    )
    options = parser.parse_args()
    firth = measure(fit_firth, options.tokens, options.order)
    assert firth is not None
    print_row("firth", options.tokens, firth)
    print("n-grams of each order:", ", ".join(f"{count:,}" for count in firth.result))
    if options.peer_tokens:
        peer = measure(count_with_nltk, options.peer_tokens, options.order)
        assert peer is not None
        print_row("nltk", options.peer_tokens, peer)
        ratio = options.tokens / firth.cpu / (options.peer_tokens / peer.cpu)
        print(f"ratio: {ratio:.2f}")


def print_row(name: str, tokens: int, measured: Measured) -> None:
    """Print the time and the peak memory of one library."""
    print(
        f"{name:5} {tokens:>11,} tokens: {measured.seconds:6.1f} s, {measured.cpu:6.1f} CPU s, "
        f"{tokens / measured.cpu:9,.0f} tokens/CPU s, peak RSS {measured.peak / 2**30:.2f} GiB"
    )


if __name__ == "__main__":
    main()
