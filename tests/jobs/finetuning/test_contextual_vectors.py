"""`--vectors MODEL`: the hidden states of a pre-trained model as input vectors of words."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import firth
from firth.jobs.finetuning import finetune
from firth.model import Model
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.presets import preset
from firth.models.recurrent.elmo import Elmo
from firth.models.word_embedding import WordNetwork
from firth.tokenizers.word_vocabulary import word_tokenizer
from firth.utils.errors import MismatchError, UsageError
from tests.jobs.finetuning.test_task_models import reviews, sentences
from tests.jobs.finetuning.toys import sums
from tests.training.conftest import Killed, kill_at

NIGHTLY = pytest.mark.nightly
TEXT = "the film is Unbelievably good"


@pytest.fixture(scope="session")
def elmo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained ELMo that knows a few words of the reviews."""
    tokenizer = word_tokenizer(["the", "film", "is", "good"], lowercase=False, split=True)
    sizes: dict[str, Any] = dict(hidden_size=8, cell_size=6, filters=(4, 4))
    config = replace(preset("elmo").config, vocab_size=len(tokenizer), embedding_size=0, **sizes)
    network = initialise(Elmo(config, ["language"]), 0)
    network.read_vocabulary(tokenizer)
    path = tmp_path_factory.mktemp("elmo")
    Model(network, tokenizer).save(path)
    return path


def train(name: str, out: Path, vectors: Any, **options: Any) -> firth.FinetuneResult:
    """Train one step, unless there are other options."""
    rows, task = (sentences, "tag") if name == "bilstm-crf" else (reviews, "classify")
    overrides = {"steps": 1, "batch_size": 8, "model.hidden_size": 6, "model.embedding_size": 4}
    overrides |= options.pop("overrides", {})
    given: dict[str, Any] = dict(task=task, train=rows(24), dev=rows(4, 1), overrides=overrides)
    return finetune(name, out=out, vectors=vectors, **{**given, **options})


def word_network(model: Model) -> WordNetwork:
    assert isinstance(model.network, WordNetwork)
    assert model.network.features is not None
    return model.network


def features(model: Model, text: str) -> Tensor:
    """The contextual vectors of the words of a text."""
    found = word_network(model).features
    ids = model.input_ids(text)
    with torch.no_grad():
        return found(ids, Mask([len(ids)]))  # type: ignore[misc]


def word_means(source: Model, text: str, layer: Tensor) -> Tensor:
    """The mean of a layer's hidden states over the tokens of each word."""
    tokenizer = source.require_tokenizer()
    sizes = [len(tokenizer.encode(word)) for word in text.split()]
    first = tokenizer.encoding(text, specials=True).special_tokens_mask.index(0)
    parts = layer[first : first + sum(sizes)].split(sizes)
    return torch.stack([part.mean(0) for part in parts])


@pytest.mark.parametrize(
    "architecture", ["encoder", "decoder", pytest.param("encoder-decoder", marks=NIGHTLY)]
)
def test_features_are_the_hidden_states_of_the_source(
    architecture: str, models: dict[str, Path], tmp_path: Path
) -> None:
    last = {"model.feature_layer": -1}
    result = train("cnn", tmp_path / "run", models[architecture], overrides=last)
    source = firth.load(models[architecture])
    expected = word_means(source, TEXT, source.hidden_states(TEXT)[-1])
    assert torch.allclose(features(result.model, TEXT), expected, atol=1e-5)


def test_elmo_is_a_mix_of_layers_also_of_unknown_words(elmo: Path, tmp_path: Path) -> None:
    """Equation 1 of Peters et al. 2018."""
    model = train("bilstm-crf", tmp_path / "run", elmo).model
    layers = firth.load(elmo).hidden_states(TEXT)  # (3, 5, 8): one token for each word
    mix = {n: p.tolist() for n, p in model.network.named_parameters() if ".mix." in n}
    weights = np.exp(mix["features.mix.weights"])
    scaled = mix["features.mix.gamma"][0] * weights / weights.sum()
    expected = sum(weight * layer for weight, layer in zip(scaled, layers.numpy(), strict=True))
    assert features(model, TEXT).numpy() == pytest.approx(expected, abs=1e-5)
    others = features(model, TEXT.replace("Unbelievably", "Xqzzw"))
    assert not torch.equal(others[3], features(model, TEXT)[3])


def test_long_texts_are_read_in_windows(models: dict[str, Path], tmp_path: Path) -> None:
    run = train("cnn", tmp_path / "run", models["encoder"], overrides={"model.feature_layer": -1})
    source = firth.load(models["encoder"])
    room = source.config.max_positions - 2
    words = ["the"] * room + ["good"] * 5
    found = features(run.model, " ".join(words))
    expected = source.hidden_states(" ".join(["good"] * 5))[-1][1:-1]
    assert torch.allclose(found[room:], expected, atol=1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_the_mix_is_trained_but_not_a_frozen_network(
    frozen: bool, elmo: Path, tmp_path: Path
) -> None:
    overrides = {"steps": 3, **({} if frozen else {"model.freeze_vectors": False})}
    result = train("lstm", tmp_path / "run", elmo, overrides=overrides)
    weights = firth.load(elmo).network.state_dict()
    found = dict(word_network(result.model).features.named_parameters())  # type: ignore[union-attr]
    same = [torch.equal(weights[n[8:]], p) for n, p in found.items() if n.startswith("network.")]
    assert all(same) if frozen else not all(same)
    assert not torch.equal(found["mix.weights"], torch.ones(3))
    assert any("frozen" in note for note in result.notes) == frozen


@pytest.mark.parametrize("name", ["bilstm-crf", pytest.param("cnn", marks=NIGHTLY)])
def test_packed_equals_one_at_a_time(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    model = train(name, tmp_path / "run", models["encoder"]).model
    parts = [model.input_ids(text) for text in (TEXT, "good", "an old Actor and his wife")]
    with torch.no_grad():
        packed = model.network(torch.cat(parts), Mask([len(part) for part in parts]))
        alone = [model.network(part, Mask([len(part)])) for part in parts]
    assert torch.allclose(packed, torch.cat(alone), atol=1e-5)


@pytest.mark.parametrize("kind", ["elmo", pytest.param("encoder", marks=NIGHTLY)])
def test_a_run_needs_no_other_files(
    kind: str, models: dict[str, Path], elmo: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(elmo if kind == "elmo" else models[kind], tmp_path / "source")
    result = train("bilstm-crf", tmp_path / "run", source)
    expected = result.model.predict(["Anna saw Xaver ."])
    shutil.rmtree(source)
    moved = firth.load(shutil.move(tmp_path / "run", tmp_path / "moved"))
    assert moved.predict(["Anna saw Xaver ."]) == expected
    moved.save(tmp_path / "copy")
    assert firth.load(tmp_path / "copy").predict(["Anna saw Xaver ."]) == expected


@pytest.mark.parametrize("frozen", [True, pytest.param(False, marks=NIGHTLY)])
def test_resumed_equals_uninterrupted(
    frozen: bool, models: dict[str, Path], tmp_path: Path
) -> None:
    overrides = {"steps": 6, "checkpoint_every": 2, "model.freeze_vectors": frozen}
    options: dict[str, Any] = dict(vectors=models["encoder"], overrides=overrides)
    whole = train("lstm", tmp_path / "whole", **options)
    with pytest.raises(Killed):
        train("lstm", tmp_path / "stopped", callbacks=kill_at(5), **options)
    resumed = train("lstm", tmp_path / "stopped", resume=True, **options)
    assert sums(whole.path) == sums(resumed.path)


def test_questions_and_texts_are_read_separately(models: dict[str, Path], tmp_path: Path) -> None:
    """BiDAF's separator is no word of either; its vector is zero."""
    answer = {"text": ["Anna"], "answer_start": [0]}
    question = {"question": "Who saw it", "context": "Anna saw it there", "answers": answer}
    result = finetune(
        "bidaf", task="span", train=[question] * 8, dev=[question], out=tmp_path / "run",
        vectors=models["encoder"],
        overrides={"steps": 1, "model.lstm_size": 4, "model.feature_layer": -1},
    )  # fmt: skip
    model, source = result.model, firth.load(models["encoder"])
    tokenizer = model.require_tokenizer()
    parts = [model.input_ids(str(question[name])) for name in ("question", "context")]
    separator = torch.tensor([tokenizer.special_ids["eos"]])
    ids = torch.cat([parts[0], separator, parts[1]])
    with torch.no_grad():
        found = word_network(model).features(ids, Mask([len(ids)]))  # type: ignore[misc]
    for text, vectors in zip(question.values(), (found[:3], found[4:]), strict=False):
        expected = word_means(source, str(text), source.hidden_states(str(text))[-1])
        assert torch.allclose(vectors, expected, atol=1e-5)
    assert not found[3].any()


def test_what_cannot_be_read(models: dict[str, Path], tmp_path: Path) -> None:
    encoder, out = models["encoder"], tmp_path / "run"
    with pytest.raises(UsageError, match=r"feature_layer=9.*0 .*to 2"):
        train("cnn", out, encoder, overrides={"model.feature_layer": 9})
    with pytest.raises(UsageError, match=r"rnn-seq2seq.*word vectors"):
        rows = [("a b", "b a")] * 8
        finetune("rnn-seq2seq", task="seq2seq", train=rows, out=out, vectors=encoder)
    with pytest.raises(UsageError, match="bow has no embeddings"):
        finetune("bow", task="classify", train=reviews(8), out=out, vectors=encoder)
    with pytest.raises(UsageError, match="whole words"):
        train("cnn", out, encoder, tokenizer=encoder)
    train("cnn", out, None)
    with pytest.raises(MismatchError, match="task-specific model"):
        train("cnn", tmp_path / "again", out)
