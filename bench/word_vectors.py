"""Train word vectors: Firth against gensim, in words/s and in correlation with human similarity.

Both train on the tokens of the same shards (unknown words left out) with gensim's defaults: 100
dimensions, window 5, 5 negatives, subsampling at 1e-3, learning rate 0.025 to 0.0001. fastText is
skip-gram with n-grams of 3 to 6 characters in 2,000,000 buckets. gensim reads the text as lists of
words in memory, Firth reads it from the shards. The two run in turn; words per second and words per
CPU second (less affected by other load) are medians of the repeats, and the last line is the
smallest ratio of the words per second. Vectors are random and not compared one by one.

    python bench/word_vectors.py --shards shards
    python bench/word_vectors.py --shards shards --quality vectors --similarity ws353.txt simlex.txt
    python bench/word_vectors.py --shards shards --quality vectors --sides gensim --seeds 2

With `--quality FOLDER`, both train with several seeds, or load the vectors of these shards that the
folder already has; `--sides`, `--kinds` and `--seeds` select some of these runs. For each file of
word pairs (`word word score`), Spearman's correlation is printed, as the mean over the seeds, and
the difference of both with its 95 % interval from a paired bootstrap over the word pairs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256
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
MAX_SENTENCE = 10_000  # words: gensim drops the rest of a longer sentence
VECTOR_SIZE, RESAMPLES = 100, 1000  # dimensions; bootstrap samples

Floats = NDArray[np.float32]


class Text(NamedTuple):
    """One text in the input formats of both libraries."""

    segments: TokenSegments  # for Firth
    words: list[str]  # the vocabulary, by token id
    sentences: list[list[str]]  # for gensim

    @property
    def num_words(self) -> int:
        """Return the number of words, without unknown ones."""
        return int(self.segments.counts.sum())


class TrainedVectors(NamedTuple):
    """The vectors of all words, with the time of the training."""

    vectors: Floats
    seconds: float
    cpu_seconds: float


class FirstDocuments:
    """The first documents of shards, with about `tokens` tokens."""

    def __init__(self, shards: Shards, tokens: int) -> None:
        ends = np.cumsum(shards.lengths)
        self.lengths = shards.lengths[: int(np.searchsorted(ends, tokens)) + 1]
        self.gather = shards.gather


def read_vocabulary(path: Path) -> list[str]:
    """Return the words of the shards' tokenizer, by token id."""
    tokenizer = Tokenizer.load(path)
    return [tokenizer.backend.id_to_token(id) or "" for id in range(len(tokenizer))]


@cache
def read_text(path: Path, tokens: int) -> Text:
    """Return the first documents of shards, without unknown and special tokens."""
    shards, tokenizer, words = Shards(path), Tokenizer.load(path), read_vocabulary(path)
    special = {*tokenizer.special_ids.values(), tokenizer.unknown_id}
    ignored = {id for id in special if id is not None}
    segments = TokenSegments(FirstDocuments(shards, tokens), len(tokenizer), ignored)
    names, sentences = np.array(words, dtype=object), []
    for segment in segments:
        boundaries = np.flatnonzero(np.diff(segment.documents)) + 1
        for document in np.split(names[segment.tokens], boundaries):
            starts = range(0, len(document), MAX_SENTENCE)
            sentences += [document[start : start + MAX_SENTENCE].tolist() for start in starts]
    return Text(segments, words, sentences)


def train_firth(text: Text, kind: str, seed: int, epochs: int, threads: int) -> TrainedVectors:
    """Train word vectors with Firth."""
    config = NegativeSamplingConfig(average=kind == "cbow", seed=seed, epochs=epochs)
    subwords = find_rows(text.words, SubwordConfig()) if kind == "fasttext" else None
    model = NegativeSampling(text.segments.counts, text.segments.tokens, config, subwords)

    def train() -> None:
        for epoch in range(epochs):
            for segment in text.segments:
                train_segment(model, segment, epoch, threads)

    seconds, cpu = _measure(train)
    return TrainedVectors(model.vectors().numpy(), seconds, cpu)


def train_gensim(text: Text, kind: str, seed: int, epochs: int, threads: int) -> TrainedVectors:
    """Train word vectors with gensim."""
    model_class: Any = FastText if kind == "fasttext" else Word2Vec
    model = model_class(
        vector_size=VECTOR_SIZE, min_count=1, sg=int(kind != "cbow"), seed=seed, workers=threads
    )
    model.build_vocab(text.sentences)
    seconds, cpu = _measure(
        lambda: model.train(text.sentences, total_examples=model.corpus_count, epochs=epochs)
    )
    vectors = np.zeros((len(text.words), VECTOR_SIZE), dtype=np.float32)
    for id, word in enumerate(text.words):
        if word in model.wv.key_to_index:
            vectors[id] = model.wv[word]
    return TrainedVectors(vectors, seconds, cpu)


SIDES = {"firth": train_firth, "gensim": train_gensim}


def _measure(function: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of one call."""
    start, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start, time.process_time() - cpu


def compare_speed(text: Text, options: argparse.Namespace) -> None:
    """Print the words/s of both libraries, measured in turn, and the ratios of the medians."""
    ratios = []
    for kind in options.kinds:
        runs: dict[str, list[TrainedVectors]] = {side: [] for side in SIDES}
        for _ in range(options.repeats):
            for side, train in SIDES.items():
                runs[side].append(train(text, kind, 1, 1, options.threads))
        speeds, cpu_speeds = (
            {
                side: text.num_words / float(np.median([run[field] for run in runs[side]]))
                for side in runs
            }
            for field in (1, 2)
        )
        for side in SIDES:
            print(
                f"{kind:9} {side:7} {speeds[side]:11,.0f} words/s "
                f"{cpu_speeds[side]:11,.0f} words/CPU s"
            )
        ratios.append(speeds["firth"] / speeds["gensim"])
        print(
            f"{kind:9} ratio   {ratios[-1]:.2f} "
            f"(CPU time {cpu_speeds['firth'] / cpu_speeds['gensim']:.2f})"
        )
    print(f"ratio: {min(ratios):.2f}")


def compare_quality(options: argparse.Namespace) -> None:
    """Print the correlations (and analogy accuracies) of both libraries."""
    words = read_vocabulary(options.shards)
    for kind in options.kinds:
        vectors_of_side = {
            side: [_load_or_train(side, kind, seed, options) for seed in options.seeds]
            for side in options.sides
        }
        for file in options.similarity:
            pairs = _read_word_pairs(file, words)
            scores = {
                side: [_cosine_similarities(vectors, pairs) for vectors in runs]
                for side, runs in vectors_of_side.items()
            }
            print(
                f"{kind:9} {file.stem} ({len(pairs)} pairs): "
                f"{_describe_correlations(pairs[:, 2], scores)}"
            )
        if options.analogies:
            questions = _read_analogies(options.analogies, words)
            for side, runs in vectors_of_side.items():
                accuracy = np.mean([_analogy_accuracy(vectors, questions) for vectors in runs])
                print(
                    f"{kind:9} analogies ({len(questions):,} questions), "
                    f"accuracy: {side} {accuracy:.3f}"
                )


def _load_or_train(side: str, kind: str, seed: int, options: argparse.Namespace) -> Floats:
    """Load the normalized vectors of a seed; train and save them if they do not exist."""
    text_id = sha256((options.shards / "index.json").read_bytes()).hexdigest()[:8]
    file = options.quality / f"{side}-{kind}-{seed}-e{options.epochs}-{text_id}.npy"
    if not file.exists():
        text = read_text(options.shards, sys.maxsize)
        trained = SIDES[side](text, kind, seed, options.epochs, options.threads)
        options.quality.mkdir(parents=True, exist_ok=True)
        np.save(file, trained.vectors)
    vectors = np.load(file)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def _read_word_pairs(file: Path, words: list[str]) -> NDArray[np.float64]:
    """Read the word pairs in the vocabulary as rows of two ids and a score."""
    ids = {word: id for id, word in enumerate(words)}
    lines = [line.lower().split() for line in file.read_text().splitlines() if line[:1] != "#"]
    known = [line for line in lines if line[0] in ids and line[1] in ids]
    return np.array([(ids[a], ids[b], float(score)) for a, b, score in known])


def _cosine_similarities(vectors: Floats, pairs: NDArray[np.float64]) -> Floats:
    """Return the cosine similarity of each word pair."""
    first, second = pairs[:, 0].astype(int), pairs[:, 1].astype(int)
    return (vectors[first] * vectors[second]).sum(1)


def _describe_correlations(gold: NDArray[np.float64], scores: dict[str, list[Floats]]) -> str:
    """Describe the mean correlations and the interval of their difference."""

    def correlations(sample: NDArray[np.int64]) -> list[float]:
        """Return each library's Spearman correlation on a sample of pairs, averaged over seeds."""
        return [
            float(np.mean([spearmanr(gold[sample], run[sample]).statistic for run in runs]))
            for runs in scores.values()
        ]

    means = correlations(np.arange(len(gold)))
    text = " ".join(f"{side} {mean:.3f}" for side, mean in zip(scores, means, strict=True))
    if len(means) == 1:
        return text
    rng = np.random.default_rng(0)
    resampled = [correlations(rng.integers(0, len(gold), len(gold))) for _ in range(RESAMPLES)]
    low, high = np.percentile([a - b for a, b in resampled], (2.5, 97.5))
    return f"{text} difference {means[0] - means[1]:+.3f} [{low:+.3f}, {high:+.3f}]"


def _read_analogies(file: Path, words: list[str]) -> NDArray[np.int64]:
    """Read the analogy questions whose four words are in the vocabulary, as ids."""
    ids = {word: id for id, word in enumerate(words)}
    lines = [line.lower().split() for line in file.read_text().splitlines() if line[:1] != ":"]
    return np.array([[ids[w] for w in line] for line in lines if all(w in ids for w in line)])


def _analogy_accuracy(vectors: Floats, questions: NDArray[np.int64]) -> float:
    """Return the fraction of analogies a : b = c : d for which d is nearest to b - a + c."""
    correct = 0
    for batch in np.array_split(questions, -(-len(questions) // 512)):
        a, b, c, d = batch.T
        similarities = (vectors[b] - vectors[a] + vectors[c]) @ vectors.T
        similarities[np.arange(len(batch)), np.stack((a, b, c))] = -np.inf
        correct += int((similarities.argmax(1) == d).sum())
    return correct / len(questions)


def main() -> None:
    """Parse the command line and compare speed or quality."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shards", type=Path, required=True, help="folder written by `firth prepare`"
    )
    parser.add_argument(
        "--tokens", type=int, default=2_000_000, help="tokens of the speed comparison (default: 2M)"
    )
    parser.add_argument(
        "--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="models (default: all)"
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="threads of each library (default: 2)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed runs of each library (default: 3)"
    )
    parser.add_argument(
        "--quality",
        type=Path,
        help="compare quality instead of speed; folder where vectors are saved",
    )
    parser.add_argument(
        "--similarity", type=Path, nargs="*", default=[], help="files of word pairs with scores"
    )
    parser.add_argument("--analogies", type=Path, help="file of analogy questions")
    parser.add_argument(
        "--sides",
        nargs="+",
        default=list(SIDES),
        choices=SIDES,
        help="with --quality: libraries to compare (default: both)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[1, 2, 3],
        help="with --quality: random seeds (default: 1 2 3)",
    )
    parser.add_argument(
        "--epochs", type=int, default=5, help="with --quality: training epochs (default: 5)"
    )
    options = parser.parse_args()
    if options.quality:
        compare_quality(options)
    else:
        compare_speed(read_text(options.shards, options.tokens), options)


if __name__ == "__main__":
    main()
