"""`firth.pretrain` with the presets of word vectors: on two topics, whose words never meet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth.quantization.c_library import DISABLE_VARIABLE
from firth.training.word_vectors.c_kernels import kernels_available
from firth.utils.errors import InputError, UsageError

TOPICS = (
    "cat dog horse sheep goat barn meadow stable".split(),
    "ship sail harbour anchor captain wave mast deck".split(),
)
PRESETS = ("skipgram", "cbow", "fasttext", "glove")
OPTIONS = {"epochs": 20, "model.hidden_size": 16}
NEGATIVE = {"sample": 0, "learning_rate": 0.05}  # for a small text


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(TOPICS[index % 2], 30)) for index in range(60)]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("words") / "tokenizer"
    firth.train_tokenizer(texts, kind="word")[0].save(out)
    return out


def vectors(
    preset: str, texts: list[str], tokenizer: Path, out: Path, **options: object
) -> torch.Tensor:
    own = {} if preset == "glove" else NEGATIVE
    own = own | ({"model.buckets": 500} if preset == "fasttext" else {})
    firth.pretrain(
        preset=preset, data=texts, tokenizer=tokenizer, out=out, overrides=OPTIONS | own | options
    )
    return firth.load(out).network.tokens.weight.detach()


@pytest.mark.parametrize("preset", PRESETS)
def test_words_of_a_topic_are_near_and_threads_do_not_matter(
    preset: str, texts: list[str], tokenizer: Path, tmp_path: Path
) -> None:
    found = vectors(preset, texts, tokenizer, tmp_path / "one")
    vocabulary = firth.load(tmp_path / "one").tokenizer.backend.get_vocab()
    topics = [found[[vocabulary[word] for word in topic]] for topic in TOPICS]
    same = [torch.cosine_similarity(topic[:, None], topic[None], dim=-1).mean() for topic in topics]
    across = torch.cosine_similarity(topics[0][:, None], topics[1][None], dim=-1).mean()
    assert min(same) > across + 0.2
    if kernels_available():
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(3 if threads == 2 else 2)
            other = vectors(preset, texts, tokenizer, tmp_path / "other")
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(found, other)


def test_without_a_compiler_the_vectors_are_the_same_up_to_rounding(
    texts: list[str], tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"epochs": 1, "learning_rate": 0.025}
    fast = vectors("skipgram", texts, tokenizer, tmp_path / "fast", **options)
    monkeypatch.setenv(DISABLE_VARIABLE, "0")
    plain = vectors("skipgram", texts, tokenizer, tmp_path / "plain", **options)
    torch.testing.assert_close(fast, plain, rtol=1e-3, atol=1e-4)


def test_unknown_words_of_fasttext_have_vectors(
    texts: list[str], tokenizer: Path, tmp_path: Path
) -> None:
    vectors("fasttext", texts, tokenizer, tmp_path / "run")
    similar, known, other = firth.load(tmp_path / "run").embed(["horses", "horse", "anchor"])
    cosine = [
        np.dot(similar, v) / np.linalg.norm(similar) / np.linalg.norm(v) for v in (known, other)
    ]
    assert cosine[0] > cosine[1] + 0.2


@pytest.mark.parametrize(
    "setting", [{"window": 0}, {"negative": 100}, {"epochs": 0}, {"learning_rate": -1.0}]
)
def test_options_outside_their_limits_are_named(
    setting: dict[str, float], texts: list[str], tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=next(iter(setting))):
        vectors("skipgram", texts, tokenizer, tmp_path / "run", **setting)


def test_a_text_without_known_words_is_an_error(tokenizer: Path, tmp_path: Path) -> None:
    for preset in PRESETS:
        with pytest.raises(InputError, match="known words"):
            vectors(preset, ["one two three"], tokenizer, tmp_path / preset)
