"""Fitting an n-gram model: seconds and memory of Firth, and the speed of counting against NLTK.

The text is drawn at random: words by Zipf's law, half of them determined by the word before. This
has more distinct n-grams than real text. Firth counts and smooths all orders; NLTK's `NgramCounter`
only counts, on the first tokens. (KenLM's estimator `lmplz` is not part of its Python package.)

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

WORDS, DOCUMENT = 50_000, 1000  # vocabulary, and tokens of a document
BOS, EOS = WORDS, WORDS + 1


def draw_tokens(count: int) -> np.ndarray:
    """Draw words by Zipf's law; half of them follow from the word before."""
    draw, tokens = np.random.default_rng(0), np.empty(count, dtype=np.uint16)
    totals = np.cumsum(1.0 / np.arange(1, WORDS + 1))
    for begin in range(0, count, 1 << 22):
        part = tokens[begin : begin + (1 << 22)]
        part[:] = np.searchsorted(totals, draw.random(len(part)) * totals[-1])
        follows = np.flatnonzero(draw.random(len(part) - 1) < 0.5)
        part[follows + 1] = part[follows].astype(np.int64) * 7919 % WORDS
    return tokens


def fit(count: int, order: int) -> list[int]:
    """Count and smooth; return the number of n-grams of each order."""
    tokens = draw_tokens(count)
    lengths = np.full(count // DOCUMENT, DOCUMENT)
    shards = MemoryShards(TokenizedDocuments(tokens, lengths, lengths), "random")
    text = bounded_text(shards, BOS, EOS, WORDS + 2)
    del shards, tokens
    with tempfile.TemporaryDirectory() as folder:
        counts = count_ngrams(text, order, WORDS + 2, Path(folder), lambda *_: None)
        del text
        predicted = np.arange(WORDS + 2) != BOS
        return [len(one.keys) for one in KneserNey(counts, BOS, predicted, print).smooth()]


def count_with_nltk(count: int, order: int) -> int:
    """Count n-grams of the same text with NLTK."""
    from nltk.lm import NgramCounter
    from nltk.util import everygrams

    rows = draw_tokens(count).reshape(-1, DOCUMENT).tolist()
    padded = ([BOS, *row, EOS] for row in rows)
    return NgramCounter(everygrams(row, max_len=order) for row in padded).N()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--order", type=int, default=3)
    parser.add_argument("--peer-tokens", type=int, default=200_000, help="0: no comparison")
    options = parser.parse_args()
    own = measure(fit, options.tokens, options.order)
    assert own is not None
    report("firth", options.tokens, own)
    print("n-grams of each order:", ", ".join(f"{count:,}" for count in own.result))
    if options.peer_tokens:
        peer = measure(count_with_nltk, options.peer_tokens, options.order)
        assert peer is not None
        report("nltk", options.peer_tokens, peer)
        ratio = options.tokens / own.cpu / (options.peer_tokens / peer.cpu)
        print(f"ratio {ratio:.2f} (tokens per second of processor time)")


def report(name: str, tokens: int, measured: Measured) -> None:
    print(
        f"{name:5} {tokens:>11,} tokens: {measured.seconds:6.1f} s, {measured.cpu:6.1f} s of "
        f"processor time, {tokens / measured.cpu:9,.0f} tokens/s of it, "
        f"{measured.peak / 2**30:.2f} GiB at most"
    )


if __name__ == "__main__":
    main()
