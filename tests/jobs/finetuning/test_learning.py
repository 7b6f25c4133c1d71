"""Untrained tiny networks learn small tasks, with every strategy and architecture."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import predict
from firth.model import load
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.table_files import read_translated
from firth.tasks.registry import task_named
from firth.tasks.task_trainer import unfrozen_groups
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.loop import Callbacks
from tests.jobs.finetuning.conftest import save
from tests.jobs.finetuning.toys import (
    NAMES,
    PLACES,
    TINY,
    WORDS,
    Files,
    asked,
    coloured,
    copied,
    named,
    table,
)
from tests.nightly import mostly_nightly

# What a strategy needs to fine-tune an untrained network.
STRATEGIES = {
    "full": {"learning_rate": 3e-3, "steps": 60},
    "freeze:1": {"learning_rate": 5e-3, "steps": 60},
    "gradual": {"learning_rate": 1e-2, "steps": 60},
    "lora": {"learning_rate": 1e-2, "steps": 60},
    "adapters": {"learning_rate": 1e-2, "steps": 60},
    "ia3": {"learning_rate": 3e-2, "steps": 90},
    "prefix": {"learning_rate": 3e-2, "steps": 90},
    "prompt": {"learning_rate": 3e-2, "steps": 90},
    "probe": {"steps": 1},
    "probe-then-full": {"learning_rate": 1e-3, "steps": 8},
}
ALL = ("encoder", "decoder", "encoder-decoder")


Learn = Callable[..., FinetuneResult]


@pytest.fixture
def learn(models: dict[str, Path], tmp_path: Path) -> Learn:
    """Fine-tune a network on a small task; return the result with its dev file."""

    def run(model: str | Path, task: str, files: Files, **options: Any) -> FinetuneResult:
        overrides = TINY | {"learning_rate": 1e-2, "steps": 60} | options.pop("overrides", {})
        model = models[model] if isinstance(model, str) else model
        given = {"train": files[0], "dev": files[1], "out": tmp_path / "run", **options}
        return finetune(model, task=task, overrides=overrides, **given)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("strategy", mostly_nightly(STRATEGIES, always=["full", "lora", "probe"]))
def test_every_strategy_learns(strategy: str, learn: Learn, tmp_path: Path) -> None:
    _, dev = files = coloured(tmp_path)
    options = {"strategy": strategy, "overrides": STRATEGIES[strategy]}
    tuned = learn("encoder", "classify", files, **options)
    assert tuned.metrics["accuracy"].value > 0.9
    assert (tuned.path / "loss.png").is_file() == (strategy != "probe")  # which has no curve
    labels = [example.label for example in task_named("classify").read(TaskFile(dev))]
    found = [answer["label"] for answer in predict(tuned.path, data=dev).answers]
    right = sum(one == other for one, other in zip(found, labels, strict=True))
    assert right / len(labels) == pytest.approx(tuned.metrics["accuracy"].value)


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_probe_does_not_fit_random_labels(task: str, learn: Learn, tmp_path: Path) -> None:
    """Only a variant of a text, or another word of its sentence, has the same random label.

    As these are never split between training and validation, a strong penalty is best.
    """
    draw = random.Random(3)
    rows = [([word] * 6, draw.choice("xy")) for word in [*WORDS, *NAMES, *PLACES]]
    sentences = ["\n".join(f"{word} {label}" for word in words) for words, label in rows]
    train, augment = tmp_path / "drawn.conll", ""
    train.write_text("\n\n".join(sentences), encoding="utf-8")
    if task == "classify":
        texts = [(" ".join(words), label) for words, label in rows]
        train, augment = table(tmp_path / "drawn.tsv", "text label", texts), "dropout,swap"
    tuned = learn("encoder", task, (train, train), strategy="probe", augment=augment)
    assert any(re.search(r"penalty 1000?, the best of 5", note) for note in tuned.notes)


NIGHTLY = pytest.mark.nightly


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["prompt", pytest.param("prefix", marks=NIGHTLY)])
@pytest.mark.parametrize(
    "architecture", ["encoder", *(pytest.param(a, marks=NIGHTLY) for a in ALL[1:])]
)
def test_learned_prompts_leave_room_for_the_text(
    architecture: str, strategy: str, learn: Learn, tmp_path: Path
) -> None:
    """Also for a text as long as the context."""
    train, _ = files = named(tmp_path)
    with train.open("a", encoding="utf-8") as file:
        file.write("\n" + "dog O\n" * 200)
    overrides = {"learning_rate": 3e-2, "max_length": "128", "batch_size": "16"}
    tuned = learn(architecture, "tag", files, strategy=strategy, overrides=overrides)
    assert tuned.model.task is not None
    assert tuned.model.task.max_length == 108  # of 128
    assert tuned.metrics["f1"].value > 0.9


def test_a_learned_prompt_of_an_encoder_decoder(learn: Learn, tmp_path: Path) -> None:
    """The positions of the prompt are not part of the mean of the text."""
    options = {"strategy": "prompt", "overrides": {"learning_rate": 3e-2}}
    tuned = learn("encoder-decoder", "classify", coloured(tmp_path), **options)
    assert tuned.metrics["accuracy"].value > 0.9


def test_biases_alone_learn(learn: Learn, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The networks of the other tests have none."""
    model = save("bert-tiny", tokenizer, tmp_path / "bert")
    overrides = {"learning_rate": 3e-2, "steps": 100, "head.pooling": "mean"}
    options = {"strategy": "bitfit", "overrides": overrides}
    tuned = learn(model, "classify", coloured(tmp_path), **options)
    assert tuned.metrics["accuracy"].value > 0.9


def test_many_labels_are_learned(learn: Learn, tmp_path: Path) -> None:
    """In a table, a list of labels is JSON; it may be empty."""
    words = {"red": "colour", "dog": "animal"}
    texts = ["red dog", "red book", "dog school", "river book", "street red", "garden dog"]
    rows = [(t, json.dumps([words[w] for w in t.split() if w in words])) for t in texts * 8]
    train = table(tmp_path / "many.tsv", "text label", rows)
    tuned = learn("encoder", "classify", (train, train))
    assert tuned.model.config.labels == ("animal", "colour")
    assert tuned.metrics["exact"].value == 1.0
    assert evaluate(tuned.path, data=train).metrics["micro_f1"].value == 1.0
    said = predict(tuned.path, data=train).answers[:4]
    assert [a["labels"] for a in said] == [["animal", "colour"], ["colour"], ["animal"], []]


@pytest.mark.parametrize("architecture", mostly_nightly(ALL, always=["encoder"]))
def test_tags_are_learned(architecture: str, learn: Learn, tmp_path: Path) -> None:
    _, dev = files = named(tmp_path)
    tuned = learn(architecture, "tag", files, overrides={"steps": 40})
    assert tuned.metrics["f1"].value > 0.9
    answer = predict(tuned.path, data=dev).answers[0]
    spans = [(e["type"], e["text"]) for e in answer["entities"]]
    tagged = zip(answer["words"], answer["tags"], strict=True)
    assert spans == [(tag.removeprefix("B-"), word) for word, tag in tagged if tag != "O"]


@pytest.mark.parametrize("architecture", mostly_nightly(ALL, always=["decoder"]))
def test_spans_are_learned(architecture: str, learn: Learn, tmp_path: Path) -> None:
    _, dev = files = asked(tmp_path)
    tuned = learn(architecture, "span", files)
    assert tuned.metrics["f1"].value > 90
    found = predict(tuned.path, data=dev)
    for example, answer in zip(found.examples, found.answers, strict=True):
        assert example.context[answer["begin"] : answer["end"]] == answer["answer"]


@pytest.mark.parametrize("architecture", mostly_nightly(ALL[1:], always=["encoder-decoder"]))
def test_copying_is_learned(architecture: str, learn: Learn, tmp_path: Path) -> None:
    _, dev = files = copied(tmp_path)
    overrides = {"steps": 200, "max_grad_norm": 0}
    tuned = learn(architecture, "seq2seq", files, overrides=overrides)
    found = [answer["text"] for answer in predict(tuned.path, data=dev).answers]
    assert found == [example.target for example in read_translated(TaskFile(dev))]


def test_gradual_unfreezing_starts_at_the_top(
    learn: Learn, models: dict[str, Path], tmp_path: Path
) -> None:
    """ULMFiT: the head alone at first, then the last block; half way through, everything."""
    before = dict(load(models["encoder"]).network.named_parameters())
    changed = {}
    for steps in (1, 16):  # 4 per epoch
        overrides = {"steps": steps, "schedule": "constant", "warmup": 0}
        options = {"strategy": "gradual", "overrides": overrides, "out": tmp_path / str(steps)}
        tuned = learn("encoder", "classify", coloured(tmp_path), **options)
        own = dict(tuned.model.network.named_parameters())
        changed[steps] = {n for n, p in own.items() if n in before and not p.equal(before[n])}
    assert changed[1] == set()
    assert {name.split(".")[2] for name in changed[16] if "blocks" in name} == {"0", "1"}
    assert "tokens.weight" in changed[16]
    assert [unfrozen_groups(step / 16, 0, 3) for step in (0, 3, 6, 8)] == [0, 1, 2, 3]
    assert unfrozen_groups(0.01, epoch=2, groups=3) == 2


@pytest.mark.parametrize("strategy", ["full", "gradual"])
def test_callbacks_of_a_run(tune: Callable[..., FinetuneResult], strategy: str) -> None:
    """They are called beside those of the strategy and of validation."""
    steps: list[int] = []
    improved: list[int] = []
    callbacks = Callbacks(
        before_step=lambda state: steps.append(state.step),
        on_improvement=lambda: improved.append(len(steps)),
    )
    tune("encoder", "classify", "sentiment", strategy=strategy, callbacks=callbacks)
    assert steps == list(range(6))
    assert improved
