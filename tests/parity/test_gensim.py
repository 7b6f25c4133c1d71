"""Word vectors against gensim: files, similarity, analogies, and n-grams of unknown words."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth import Model, evaluate
from firth.formats.word_vectors.reading import read_word_vectors
from firth.formats.word_vectors.static_model import static_model
from firth.formats.word_vectors.word_vectors import WordVectors
from firth.formats.word_vectors.writing import write_word_vectors
from firth.inference.embedding.word_lookup import look_up
from firth.models.static_vectors import StaticVectors
from firth.models.subwords import SubwordConfig

gensim_models = pytest.importorskip(
    "gensim.models", reason="gensim is not installed: run `make references`"
)
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # gensim leaves files open

WORDS = [f"w{i}ö" for i in range(60)]


@pytest.fixture(scope="module")
def vectors() -> WordVectors:
    draw = np.random.default_rng(3)
    return WordVectors(WORDS, draw.normal(size=(60, 3)).astype(np.float32))


@pytest.fixture
def theirs(vectors: WordVectors) -> Any:
    found = gensim_models.KeyedVectors(vector_size=3)
    found.add_vectors(vectors.words, vectors.vectors)
    return found


@pytest.mark.parametrize(("format", "binary"), [("word2vec", False), ("word2vec-binary", True)])
def test_each_reads_the_files_of_the_other(
    vectors: WordVectors, theirs: Any, format: str, binary: bool, tmp_path: Path
) -> None:
    theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    ours = read_word_vectors(tmp_path / "theirs")
    assert ours.words == vectors.words
    assert ours.vectors == pytest.approx(vectors.vectors, abs=1e-6)
    write_word_vectors(vectors, tmp_path / "ours", format=format)
    again = gensim_models.KeyedVectors.load_word2vec_format(str(tmp_path / "ours"), binary=binary)
    assert again.index_to_key == vectors.words
    assert np.array_equal(again.vectors, vectors.vectors)


def test_glove_files(vectors: WordVectors, tmp_path: Path) -> None:
    write_word_vectors(vectors, tmp_path / "glove.txt", format="glove")
    found = gensim_models.KeyedVectors.load_word2vec_format(
        str(tmp_path / "glove.txt"), binary=False, no_header=True
    )
    assert np.array_equal(found.vectors, vectors.vectors)


def test_similarity(vectors: WordVectors, theirs: Any, tmp_path: Path) -> None:
    draw, data = np.random.default_rng(0), tmp_path / "pairs.tsv"
    # Each pair once: gensim's cosines of equal pairs differ in the last bits, ours are ties.
    pairs = draw.permutation(list(combinations([*WORDS, "unknown"], 2)))[:200]
    rows = [(*pair, draw.integers(0, 20) / 2) for pair in pairs]
    lines = ["unknown\tw1ö\t1.0\n", *("\t".join(map(str, row)) + "\n" for row in rows)]
    data.write_text("".join(lines), encoding="utf-8")
    pearson, spearman, missing = theirs.evaluate_word_pairs(str(data))
    found = evaluate(Model(*static_model(vectors)), task="similarity", data=data)
    assert found.metrics["spearman"].value == pytest.approx(spearman[0], abs=1e-6)
    assert found.metrics["pearson"].value == pytest.approx(pearson[0], abs=1e-6)
    details = found.details
    assert 100 * details["out_of_vocabulary"] / details["pairs"] == pytest.approx(missing)


def test_analogies(vectors: WordVectors, theirs: Any, tmp_path: Path) -> None:
    draw, data = np.random.default_rng(0), tmp_path / "questions.txt"
    lines = []
    for section in ("capitals", "gram1", "gram2"):
        rows = [draw.choice([*WORDS[:12], "unknown"], 4, replace=False) for _ in range(300)]
        lines += [f": {section}\n", *(" ".join(row) + "\n" for row in rows)]
    data.write_text("".join(lines), encoding="utf-8")
    accuracy, sections = theirs.evaluate_word_analogies(str(data))
    found = evaluate(Model(*static_model(vectors)), task="analogies", data=data)
    assert accuracy > 0
    assert found.metrics["accuracy"].value == pytest.approx(accuracy)
    for one in sections:
        if one["section"] in found.parts:
            right, wrong = len(one["correct"]), len(one["incorrect"])
            value = found.parts[one["section"]]["accuracy"].value
            assert value == pytest.approx(right / (right + wrong))


def test_unknown_words_of_fasttext() -> None:
    draw, config = np.random.default_rng(0), SubwordConfig(min_n=2, max_n=5, buckets=100)
    words, ngrams = draw.normal(size=(2, 4)), draw.normal(size=(100, 4)).astype(np.float32)
    theirs = gensim_models.fasttext.FastTextKeyedVectors(4, min_n=2, max_n=5, bucket=100)
    theirs.add_vectors(["sun", "moon"], words.astype(np.float32))
    theirs.vectors_ngrams = ngrams
    known, tokenizer = static_model(WordVectors(["sun", "moon"], words.astype(np.float32)))
    network = StaticVectors.from_matrix(
        known.tokens.weight.detach(),
        unknown_token_id=2,
        ngrams=torch.from_numpy(ngrams),
        subwords=config,
    )
    unknown = ["sunlight", "Mönd".lower(), "日本語"]
    found = look_up(Model(network, tokenizer).embedder(), unknown)
    expected = np.stack([theirs.get_vector(word) for word in unknown])
    assert found.vectors == pytest.approx(expected, abs=1e-5)
