"""Word vectors as a model: loaded from a file, saved, embedded, and used by other networks."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from firth import Model, embed, export, inspect, load, search
from firth.formats.word_vectors.reading import read_word_vectors
from firth.formats.word_vectors.static_model import static_model
from firth.formats.word_vectors.word_vectors import WordVectors
from firth.inference.embedding.embedding_matrix import embedding_matrix
from firth.inference.embedding.word_lookup import look_up
from firth.models.masks import Mask
from firth.models.static_vectors import StaticVectors
from firth.models.subwords import SubwordConfig, hash_ngram, word_ngrams
from firth.utils.errors import FirthError, MismatchError, UsageError

LINES = "the 1 0 0\nsun 0 2 0\nmoon 0 1 1\n. 0 0 3\ndo 1 1 1\nn't 2 2 2\n"
VECTORS = np.array(
    [[1, 0, 0], [0, 2, 0], [0, 1, 1], [0, 0, 3], [1, 1, 1], [2, 2, 2]], dtype=np.float32
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "small.txt"
    file.write_text(LINES, encoding="utf-8")
    return file


def test_a_file_is_a_model(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="firth"):
        model = load(path)
    assert isinstance(model.network, StaticVectors)
    assert model.tokens("The Sun, don't.") == ["the", "sun", "<unk>", "do", "n't", "."]
    assert "lower case" in caplog.text
    assert "small.txt" in caplog.text


def test_the_vector_of_a_text_is_the_mean_of_its_known_words(path: Path) -> None:
    texts = ["The Sun", "the purple sun.", "purple", ""]
    expected = [VECTORS[:2].mean(0), VECTORS[[0, 1, 3]].mean(0), np.zeros(3), np.zeros(3)]
    assert embed(path, texts[:3]) == pytest.approx(np.array(expected[:3]), abs=1e-6)
    model = load(path)
    together = model.embed([*texts, "moon " * 5000])
    assert together[-1] == pytest.approx(VECTORS[2], abs=1e-4)
    assert together[:-1] == pytest.approx(np.array(expected), abs=1e-6)
    hits = search(model, ["the", "sun moon", "."], "moon", top=1)
    assert hits[0].text == "sun moon"


def test_cased_words_stay_cased_and_a_contraction_is_one_word(tmp_path: Path) -> None:
    path = tmp_path / "cased.txt"
    path.write_text("the 1 0\nThe 0 1\ndon't 1 1\n<unk> 5 5\n", encoding="utf-8")
    model = load(path)
    assert model.tokens("The the don't THE") == ["The", "the", "don't", "<unk>"]
    assert model.embed(["THE The"]).tolist() == [[0, 1]]


def test_it_survives_saving_and_exporting(path: Path, tmp_path: Path) -> None:
    model = load(path)
    assert model.save(tmp_path / "model") == "firth"
    again = load(tmp_path / "model")
    assert again.config == model.config
    assert not again.network.heads
    assert np.array_equal(again.embed(["The purple moon."]), model.embed(["The purple moon."]))
    for source, limit in ((path, 0), (tmp_path / "model", 2), (again, 0)):
        out = tmp_path / "out.bin"
        assert export(source, out, to="word2vec-binary", limit=limit, overwrite=True) == (
            "word2vec-binary"
        )
        found = read_word_vectors(out)
        assert found.words == ["the", "sun", "moon", ".", "do", "n't"][: limit or None]
        assert np.array_equal(found.vectors, VECTORS[: limit or None])
    with pytest.raises(UsageError, match="overwrite"):
        export(path, out, to="glove")
    with pytest.raises(UsageError, match="word2vec"):
        export(path, tmp_path / "new", to="onnx")
    with pytest.raises(MismatchError, match="transformers"):
        export(path, tmp_path / "new", to="hf")
    with pytest.raises(MismatchError, match=r"stories-encoder.* no word vectors"):
        export("stories-encoder", tmp_path / "new.txt", to="glove")


def with_subwords() -> tuple[Model, torch.Tensor, SubwordConfig]:
    subwords = SubwordConfig(min_n=3, max_n=4, buckets=20)
    ngrams = torch.arange(60, dtype=torch.float32).reshape(20, 3).sin()
    known, tokenizer = static_model(WordVectors(["sun", "moon"], VECTORS[1:3]))
    network = StaticVectors.from_matrix(
        known.tokens.weight.detach(), unknown_token_id=2, ngrams=ngrams, subwords=subwords
    )
    return Model(network, tokenizer), ngrams, subwords


def test_unknown_words_are_composed_of_n_grams(tmp_path: Path) -> None:
    model, ngrams, config = with_subwords()
    rows = [hash_ngram(one) % config.buckets for one in word_ngrams("sunny", 3, 4)]
    sunny = ngrams[rows].mean(0).numpy()
    found = look_up(model.embedder(), ["Sunny", "sun"])
    assert found.vectors == pytest.approx(np.stack([sunny, VECTORS[1]]), abs=1e-6)
    expected = (sunny + VECTORS[1] + VECTORS[2]) / 3
    texts = ["moon", "Sunny moon sun", "sun"]
    assert model.embed(texts)[1] == pytest.approx(expected, abs=1e-6)
    model.save(tmp_path / "model")
    assert np.array_equal(load(tmp_path / "model").embed(texts), model.embed(texts))


def test_packed_equals_one_at_a_time() -> None:
    model, _, _ = with_subwords()
    rows = [[0, 1], [1], [2, 0, 1]]
    packed = model.network(torch.tensor([0, 1, 1, 2, 0, 1]), Mask([2, 1, 3]))
    single = [model.network(torch.tensor(row), Mask([len(row)])) for row in rows]
    assert torch.equal(packed, torch.cat(single))


# --- vectors for other networks


def test_the_matrix_of_a_vocabulary(path: Path, tmp_path: Path) -> None:
    words = ["<pad>", "Sun", "moon", "Purple", "do"]
    matrix, coverage = embedding_matrix(path, words, seed=1)
    assert np.array_equal(matrix[[1, 2, 4]], VECTORS[[1, 2, 4]])
    assert (coverage.exact, coverage.lowercased, coverage.fraction) == (2, 1, 0.6)
    assert np.isfinite(matrix).all()
    assert not np.array_equal(matrix[0], matrix[3])
    load(path).save(tmp_path / "model")
    again, same = embedding_matrix(load(tmp_path / "model").embedder(), words, seed=1)
    assert np.array_equal(matrix, again)
    assert coverage == same
    assert not np.array_equal(matrix, embedding_matrix(path, words, seed=2)[0])


def test_random_rows_have_the_scale_of_the_known_ones() -> None:
    draw = np.random.default_rng(0)
    known = WordVectors(
        [f"w{i}" for i in range(500)], draw.normal(0.1, 0.4, (500, 20)).astype("f4")
    )
    matrix, _ = embedding_matrix(known, [*known.words, *(f"x{i}" for i in range(500))])
    assert matrix[500:].mean() == pytest.approx(0.1, abs=0.02)
    assert matrix[500:].std() == pytest.approx(0.4, rel=0.05)


def test_no_overlap_names_both(path: Path) -> None:
    with pytest.raises(MismatchError, match=r"(?s)2 words.*'Hund'.*small\.txt"):
        embedding_matrix(path, ["Hund", "Katze"])


def test_an_encoder_embeds_each_word() -> None:
    model = load("stories-encoder")
    matrix, coverage = embedding_matrix(model.embedder(), ["dog", "cat"])
    assert coverage.fraction == 1
    assert matrix == pytest.approx(model.embed(["dog", "cat"]), abs=1e-5)


# --- other verbs


def test_inspect_shows_the_nearest_words(path: Path) -> None:
    found = inspect(path, "The Sun, moon")
    [section] = found.sections
    values = found.values()["texts"][0]["neighbours"]
    assert section.name == "neighbours"
    assert values["unknown"] == [","]
    nearest = {row["word"]: row["nearest"] for row in values["words"]}
    assert list(nearest) == ["The", "Sun", "moon"]
    units = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    assert nearest["Sun"][0] == {"token": "moon", "cosine": pytest.approx(units[1] @ units[2])}
    for name in ("attention", "lens", "tokens"):
        with pytest.raises(MismatchError, match=rf"{name} .*Transformer.*small\.txt"):
            inspect(path, "The sun", show=name)


def test_token_embeddings_have_neighbours() -> None:
    found = inspect("stories-encoder", "The dog barked.", show="neighbours")
    rows = found.values()["texts"][0]["neighbours"]["words"]
    assert [row["word"] for row in rows][:2] == ["The", "·dog"]
    assert all(len(row["nearest"]) == 5 for row in rows)


@pytest.mark.parametrize("use", ["generate", "fill", "score"])
def test_what_word_vectors_cannot_do_says_so(path: Path, use: str) -> None:
    with pytest.raises(FirthError, match=r"cannot|language head"):
        getattr(load(path), use)("the [MASK] sun" if use == "fill" else "the sun")
