"""Ensembles: averaged predictions of several models, and models that cannot be averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import predict
from firth.model import Model, load
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer
from firth.utils.errors import MismatchError
from tests.jobs.finetuning.conftest import save
from tests.jobs.finetuning.toys import TINY, TOYS, asked, coloured, copied

SHORT = TINY | {"steps": 4, "learning_rate": 5e-3}
Tuned = Callable[..., Path]


@pytest.fixture
def tuned(models: dict[str, Path], tmp_path: Path) -> Tuned:
    """Fine-tune a model on a small task, with a seed."""

    def run(task: str, seed: int, model: Path | None = None, **options: Any) -> Path:
        train, dev = TOYS[task](tmp_path, **options)
        base = model or models["encoder-decoder" if task == "seq2seq" else "encoder"]
        out = tmp_path / f"{task}-{seed}"
        files = {"train": train, "dev": dev, "out": out}
        return finetune(base, task=task, seed=seed, overrides=SHORT, **files).path

    return run


@pytest.fixture(scope="module")
def foreign(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with another tokenizer."""
    options = {"kind": "bpe", "vocab_size": 500, "specials": "bert"}
    other: Tokenizer = train_tokenizer([stories / "dev.txt"], workers=1, **options)[0]
    return save("encoder-tiny", other, tmp_path_factory.mktemp("foreign") / "model")


def shares(models: Any, data: Path, name: str = "x") -> list[float]:
    return [answer["scores"][name] for answer in predict(models, data=data).answers]


def test_probabilities_are_averaged(tuned: Tuned, tmp_path: Path) -> None:
    paths = [tuned("classify", seed) for seed in (0, 1, 2)]
    _, dev = coloured(tmp_path)
    each = np.array([shares(path, dev) for path in paths])
    together = predict(paths, data=dev).answers
    assert [a["scores"]["x"] for a in together] == pytest.approx(each.mean(0).tolist())
    assert each.std(0).max() > 1e-3  # the models differ
    for answer in together:
        assert answer["label"] == max(answer["scores"], key=answer["scores"].__getitem__)
        assert sum(answer["scores"].values()) == pytest.approx(1.0)


def test_models_are_compared_and_averaged(
    tuned: Tuned, tmp_path: Path, firth_here: Callable[..., Any]
) -> None:
    paths = [tuned("classify", seed) for seed in (0, 1)]
    _, dev = coloured(tmp_path)
    compared = evaluate(paths, data=dev)
    assert list(compared.models) == list(map(str, paths))
    for path, found in compared.models.items():
        assert found.metrics == evaluate(path, data=dev).metrics
    assert [line.split(": ")[0] for line in repr(compared).splitlines()] == list(compared.models)
    gold = [line.split("\t")[1] for line in dev.read_text(encoding="utf-8").splitlines()[1:]]
    said = [answer["label"] for answer in predict(paths, data=dev).answers]
    averaged = evaluate(paths, data=dev, ensemble=True)
    right = sum(a == b for a, b in zip(gold, said, strict=True))
    assert averaged.metrics["accuracy"].value == pytest.approx(right / len(gold))

    done = firth_here("evaluate", *paths, "--data", dev)
    for path, found in compared.models.items():
        metric = found.metrics["accuracy"]
        (row,) = (line for line in done.stdout.splitlines() if f"{path} " in line)
        assert f" {metric.value:.4f} " in row
        assert f" {metric.low:.4f}–{metric.high:.4f} " in row
    rows = firth_here("evaluate", *paths, "--data", dev, "--json").json["models"]
    assert [row["model"] for row in rows] == list(compared.models)
    assert rows[1]["metrics"] == compared.models[str(paths[1])].values()["metrics"]
    found = firth_here("evaluate", *paths, "--data", dev, "--ensemble", "--json").json
    assert found["metrics"] == averaged.values()["metrics"]
    assert found["details"]["ensemble"] == list(compared.models)
    for words in (["--ensemble"], ["--ensemble", "--task", "lm"], ["--suite", "lm"]):
        models = paths[:1] if words == ["--ensemble"] else paths
        assert firth_here("evaluate", *models, "--data", dev, *words).returncode == 2
    assert firth_here("evaluate", *paths, "--data", "-", input="text\n").returncode == 2


def test_probabilities_of_tags_are_averaged(tuned: Tuned, tmp_path: Path) -> None:
    paths = [tuned("tag", seed) for seed in (0, 1)]
    data = tmp_path / "names-dev.conll"
    one, two, both = (predict(p, data=data).answers for p in (paths[0], paths[1], paths))
    said = [(a["tags"], b["tags"], c["tags"]) for a, b, c in zip(one, two, both, strict=True)]
    agreed = [(x, z) for a, b, c in said for x, y, z in zip(a, b, c, strict=True) if x == y]
    assert agreed
    assert sum(x == z for x, z in agreed) > 0.9 * len(agreed)


def test_labels_may_be_in_another_order(tuned: Tuned, tmp_path: Path) -> None:
    """A model and the same with its labels reversed."""
    path = tuned("classify", 0)
    _, dev = coloured(tmp_path)
    plain, turned = load(path), load(path)
    head = turned.network.heads["classify"].output
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(parameter.flip(0))
    assert turned.task is not None
    labels = turned.task.labels[::-1]
    assert labels == ("y", "x")
    turned.network.config = replace(turned.config, labels=labels)
    turned = replace(turned, task=replace(turned.task, labels=labels))
    assert shares(turned, dev) == pytest.approx(shares(plain, dev))
    assert shares([plain, turned], dev) == pytest.approx(shares(plain, dev))
    assert shares([turned, plain], dev) == pytest.approx(shares(plain, dev))


def test_tokenizers_may_differ_for_labels(tuned: Tuned, foreign: Path, tmp_path: Path) -> None:
    paths = [tuned("classify", 0), tuned("classify", 1, foreign)]
    _, dev = coloured(tmp_path)
    each = np.array([shares(path, dev) for path in paths])
    assert shares(paths, dev) == pytest.approx(each.mean(0).tolist())


def test_tokenizers_must_agree_for_spans(tuned: Tuned, foreign: Path, tmp_path: Path) -> None:
    paths = [tuned("span", 0), tuned("span", 1, foreign)]
    _, dev = asked(tmp_path)
    with pytest.raises(MismatchError, match="cannot be averaged: their tokenizers differ"):
        predict(paths, data=dev)
    same = [paths[0], tuned("span", 2)]
    assert len(predict(same, data=dev).answers) == 24


def test_models_that_cannot_be_averaged(
    tuned: Tuned, tune: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    first = tuned("classify", 0)
    other = tuned("classify", 1, labels={"red": "warm", "green": "cold"})
    _, dev = coloured(tmp_path)
    with pytest.raises(MismatchError, match=r"labels differ \(x, y and cold, warm\)"):
        predict([first, other], data=dev)
    with pytest.raises(MismatchError, match="fine-tuned on classify, another on tag"):
        predict([first, tuned("tag", 0)], data=dev)
    writer = tuned("seq2seq", 0)
    _, pairs = copied(tmp_path)
    with pytest.raises(MismatchError, match="cannot be averaged: they generate text"):
        predict([writer, writer], data=pairs)


def test_an_ensemble_of_one_model(tuned: Tuned, tmp_path: Path) -> None:
    path = tuned("classify", 0)
    _, dev = coloured(tmp_path)
    model: Model = load(path)
    assert shares([path], dev) == shares(path, dev) == shares(model, dev)
