"""Word vectors: Firth against gensim, words per second and similarity of words.

Both sides train on the tokens of the same shards (unknown words left out) with gensim's defaults:
100 dimensions, window 5, 5 negatives, subsampling at 1e-3, learning rate 0.025 to 0.0001. fastText
is skip-gram with n-grams of 3 to 6 characters in 2,000,000 buckets. Text is in memory as lists of
words on gensim's side, and read from the shards on Firth's. A busy machine distorts seconds; CPU
time is shown, too.

    python bench/word_vectors.py --shards shards
    python bench/word_vectors.py --shards shards --quality vectors --similarity ws353.txt simlex.txt
    python bench/word_vectors.py --shards shards --quality vectors --sides gensim --seeds 2

With `--quality` both sides train with several seeds, or read the vectors that the folder holds
already: `--sides`, `--kinds` and `--seeds` train a part of them. For each file of word pairs (`word
word score`) it prints Spearman's correlation, the mean of all seeds, and the difference with its
95 % interval, a paired bootstrap over the pairs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gensim.models import FastText, Word2Vec
from numpy.typing import NDArray
from scipy.stats import spearmanr

from firth.data.shards import Shards
from firth.models.subwords import SubwordConfig
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.word_vectors.c_kernels import train_segment
from firth.training.word_vectors.negative_sampling import NegativeSampling, NegativeSamplingConfig
from firth.training.word_vectors.subword_rows import find_rows
from firth.training.word_vectors.token_segments import TokenSegments

KINDS = ("skipgram", "cbow", "fasttext")
SENTENCE = 10_000  # words at most: gensim drops the rest
SIZE, RESAMPLES = 100, 1000

Floats = NDArray[np.float32]


class Text(NamedTuple):
    """The same text for both sides."""

    segments: TokenSegments
    words: list[str]  # of the vocabulary
    sentences: list[list[str]]

    @property
    def count(self) -> int:
        """The number of known words."""
        return int(self.segments.counts.sum())


class Trained(NamedTuple):
    """Vectors of all words, and what they took."""

    vectors: Floats
    seconds: float
    cpu: float


class Part:
    """The first documents of shards."""

    def __init__(self, shards: Shards, tokens: int) -> None:
        ends = np.cumsum(shards.lengths)
        self.lengths = shards.lengths[: int(np.searchsorted(ends, tokens)) + 1]
        self.gather = shards.gather


def read_words(path: Path) -> list[str]:
    """Read the vocabulary of shards."""
    tokenizer = Tokenizer.load(path)
    return [tokenizer.backend.id_to_token(id) or "" for id in range(len(tokenizer))]


@cache
def read_text(path: Path, tokens: int) -> Text:
    """Read the first documents of shards, without unknown and special tokens."""
    shards, tokenizer, words = Shards(path), Tokenizer.load(path), read_words(path)
    ignored = {*tokenizer.special_ids.values(), tokenizer.unknown_id} - {None}
    segments = TokenSegments(Part(shards, tokens), len(tokenizer), ignored)
    names, sentences = np.array(words, dtype=object), []
    for segment in segments:
        starts = np.flatnonzero(np.diff(segment.documents)) + 1
        for document in np.split(names[segment.tokens], starts):
            pieces = range(0, len(document), SENTENCE)
            sentences += [document[piece : piece + SENTENCE].tolist() for piece in pieces]
    return Text(segments, words, sentences)


def train_firth(text: Text, kind: str, seed: int, epochs: int, threads: int) -> Trained:
    """Firth's side."""
    config = NegativeSamplingConfig(average=kind == "cbow", seed=seed, epochs=epochs)
    subwords = find_rows(text.words, SubwordConfig()) if kind == "fasttext" else None
    model = NegativeSampling(text.segments.counts, text.segments.tokens, config, subwords)

    def train() -> None:
        for epoch in range(epochs):
            for segment in text.segments:
                train_segment(model, segment, epoch, threads)

    seconds, cpu = _timed(train)
    return Trained(model.vectors().numpy(), seconds, cpu)


def train_gensim(text: Text, kind: str, seed: int, epochs: int, threads: int) -> Trained:
    """gensim's side."""
    make: Any = FastText if kind == "fasttext" else Word2Vec
    model = make(vector_size=SIZE, min_count=1, sg=int(kind != "cbow"), seed=seed, workers=threads)
    model.build_vocab(text.sentences)
    seconds, cpu = _timed(
        lambda: model.train(text.sentences, total_examples=model.corpus_count, epochs=epochs)
    )
    vectors = np.zeros((len(text.words), SIZE), dtype=np.float32)
    for id, word in enumerate(text.words):
        if word in model.wv.key_to_index:
            vectors[id] = model.wv[word]
    return Trained(vectors, seconds, cpu)


SIDES = {"firth": train_firth, "gensim": train_gensim}


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


def compare_speed(text: Text, options: argparse.Namespace) -> None:
    """Print words per second of both sides, in turns, and the ratio of the medians."""
    ratios = []
    for kind in options.kinds:
        runs: dict[str, list[Trained]] = {side: [] for side in SIDES}
        for _ in range(options.repeats):
            for side, train in SIDES.items():
                runs[side].append(train(text, kind, 1, 1, options.threads))
        speeds, cpu = (
            {
                side: text.count / float(np.median([run[field] for run in runs[side]]))
                for side in runs
            }
            for field in (1, 2)
        )
        for side in SIDES:
            print(f"{kind:9} {side:7} {speeds[side]:11,.0f} words/s {cpu[side]:11,.0f} words/CPU s")
        ratios.append(speeds["firth"] / speeds["gensim"])
        print(f"{kind:9} ratio   {ratios[-1]:.2f}, of CPU time {cpu['firth'] / cpu['gensim']:.2f}")
    print(f"ratio: {min(ratios):.2f}")


def compare_quality(options: argparse.Namespace) -> None:
    """Print the correlations of both sides and the interval of their difference."""
    words = read_words(options.shards)
    for kind in options.kinds:
        found = {
            side: [_vectors(side, kind, seed, options) for seed in options.seeds]
            for side in options.sides
        }
        for file in options.similarity:
            rows = _word_pairs(file, words)
            scores = {side: [_cosines(v, rows) for v in each] for side, each in found.items()}
            print(f"{kind:9} {file.stem} ({len(rows)} pairs): {_difference(rows[:, 2], scores)}")
        if options.analogies:
            questions = _questions(options.analogies, words)
            for side, each in found.items():
                right = np.mean([_analogies(vectors, questions) for vectors in each])
                print(f"{kind:9} analogies ({len(questions):,} questions): {side} {right:.3f}")


def _vectors(side: str, kind: str, seed: int, options: argparse.Namespace) -> Floats:
    """Read the vectors of a seed, or train and store them."""
    file = options.quality / f"{side}-{kind}-{seed}-e{options.epochs}.npy"
    if not file.exists():
        text = read_text(options.shards, sys.maxsize)
        trained = SIDES[side](text, kind, seed, options.epochs, options.threads)
        options.quality.mkdir(parents=True, exist_ok=True)
        np.save(file, trained.vectors)
    vectors = np.load(file)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def _word_pairs(file: Path, words: list[str]) -> NDArray[np.float64]:
    """Read the pairs whose words are known: two ids and a score."""
    ids = {word: id for id, word in enumerate(words)}
    lines = [line.lower().split() for line in file.read_text().splitlines() if line[:1] != "#"]
    known = [line for line in lines if line[0] in ids and line[1] in ids]
    return np.array([(ids[a], ids[b], float(score)) for a, b, score in known])


def _cosines(vectors: Floats, rows: NDArray[np.float64]) -> Floats:
    first, second = rows[:, 0].astype(int), rows[:, 1].astype(int)
    return (vectors[first] * vectors[second]).sum(1)


def _difference(gold: NDArray[np.float64], scores: dict[str, list[Floats]]) -> str:
    """Describe the mean correlations and their difference, with a paired bootstrap interval."""

    def correlations(rows: NDArray[np.int64]) -> list[float]:
        return [
            float(np.mean([spearmanr(gold[rows], one[rows]).statistic for one in each]))
            for each in scores.values()
        ]

    means = correlations(np.arange(len(gold)))
    shown = " ".join(f"{side} {mean:.3f}" for side, mean in zip(scores, means, strict=True))
    if len(means) == 1:
        return shown
    rng = np.random.default_rng(0)
    draws = [correlations(rng.integers(0, len(gold), len(gold))) for _ in range(RESAMPLES)]
    low, high = np.percentile([a - b for a, b in draws], (2.5, 97.5))
    return f"{shown} difference {means[0] - means[1]:+.3f} [{low:+.3f}, {high:+.3f}]"


def _questions(file: Path, words: list[str]) -> NDArray[np.int64]:
    ids = {word: id for id, word in enumerate(words)}
    lines = [line.lower().split() for line in file.read_text().splitlines() if line[:1] != ":"]
    return np.array([[ids[w] for w in line] for line in lines if all(w in ids for w in line)])


def _analogies(vectors: Floats, questions: NDArray[np.int64]) -> float:
    """Return the fraction of questions a : b = c : d whose nearest word to b - a + c is d."""
    right = 0
    for part in np.array_split(questions, -(-len(questions) // 512)):
        a, b, c, d = part.T
        scores = (vectors[b] - vectors[a] + vectors[c]) @ vectors.T
        scores[np.arange(len(part)), np.stack((a, b, c))] = -np.inf
        right += int((scores.argmax(1) == d).sum())
    return right / len(questions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2_000_000, help="of the text, for speed")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quality", type=Path, help="compare quality; a folder for vectors")
    parser.add_argument("--similarity", type=Path, nargs="*", default=[])
    parser.add_argument("--analogies", type=Path)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    if options.quality:
        compare_quality(options)
    else:
        compare_speed(read_text(options.shards, options.tokens), options)


if __name__ == "__main__":
    main()
