"""Learning really happens: a tiny network that knows nothing learns a little task."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import finetune
from firth.jobs.prediction import predict
from firth.model import load
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.table_files import read_translated
from firth.tasks.registry import task_named
from firth.tasks.task_trainer import unfrozen_groups
from firth.tokenizers.tokenizer import Tokenizer
from tests.jobs.finetuning.conftest import save
from tests.jobs.finetuning.toys import (
    NAMES,
    PLACES,
    TINY,
    WORDS,
    asked,
    coloured,
    copied,
    named,
    table,
)

# What a strategy needs to teach a network that was never pre-trained.
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_learns(strategy: str, models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = coloured(tmp_path)
    tuned = finetune(
        models["encoder"],
        task="classify",
        train=train,
        dev=dev,
        out=tmp_path / "run",
        strategy=strategy,
        overrides=TINY | STRATEGIES[strategy],
    )
    assert tuned.metrics["accuracy"].value == 1.0
    assert (tuned.path / "loss.png").is_file() == (strategy != "probe")  # which has no curve
    right = [example.label for example in task_named("classify").read(TaskFile(dev))]
    assert [answer["label"] for answer in predict(tuned.path, data=dev).answers] == right


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_probe_sees_through_labels_that_mean_nothing(
    task: str, models: dict[str, Path], tmp_path: Path
) -> None:
    """Only a variant of a text, or another word of a sentence, tells its drawn label.

    Where these are never asked about and learned from at once, the strongest penalty is best.
    """
    draw = random.Random(0)
    rows = [([word] * 6, draw.choice("xy")) for word in [*WORDS, *NAMES, *PLACES]]
    sentences = ["\n".join(f"{word} {label}" for word in words) for words, label in rows]
    train, augment = tmp_path / "drawn.conll", ""
    train.write_text("\n\n".join(sentences), encoding="utf-8")
    if task == "classify":
        texts = [(" ".join(words), label) for words, label in rows]
        train, augment = table(tmp_path / "drawn.tsv", "text label", texts), "dropout,swap"
    files = {"train": train, "dev": train, "out": tmp_path / "run"}
    given = {"task": task, "strategy": "probe", "augment": augment, "overrides": TINY}
    tuned = finetune(models["encoder"], **given, **files)
    assert any("penalty 1000, the best of 5" in note for note in tuned.notes)


@pytest.mark.parametrize("strategy", ["prompt", "prefix"])
@pytest.mark.parametrize("architecture", ALL)
def test_what_stands_before_a_text_leaves_it_room(
    architecture: str, strategy: str, models: dict[str, Path], tmp_path: Path
) -> None:
    """Also one that is as long as the network reads; and no place is taken for another."""
    train, dev = named(tmp_path)
    with train.open("a", encoding="utf-8") as file:
        file.write("\n" + "dog O\n" * 200)
    files = {"train": train, "dev": dev, "out": tmp_path / "run"}
    overrides = {"precision": "fp32", "steps": 60, "learning_rate": 3e-2, "validate_every": 1.0}
    tuned = finetune(
        models[architecture], task="tag", strategy=strategy, overrides=overrides, **files
    )
    assert tuned.model.task is not None
    assert tuned.model.task.max_length == 108  # of 128
    assert tuned.metrics["f1"].value > 0.9


def test_a_prompt_before_an_encoder_that_is_asked_alone(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """What becomes of the prompt is for a decoder to look at, not for the mean of the text."""
    train, dev = coloured(tmp_path)
    files = {"train": train, "dev": dev, "out": tmp_path / "run"}
    overrides = TINY | {"learning_rate": 3e-2, "steps": 60}
    given = {"task": "classify", "strategy": "prompt", "overrides": overrides}
    tuned = finetune(models["encoder-decoder"], **given, **files)
    assert tuned.metrics["accuracy"].value == 1.0


def test_biases_alone_learn(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The networks of the other tests have none."""
    model = save("bert-tiny", tokenizer, tmp_path / "bert")
    train, dev = coloured(tmp_path)
    overrides = TINY | {"learning_rate": 3e-2, "steps": 100, "head.pooling": "mean"}
    files = {"train": train, "dev": dev, "out": tmp_path / "run"}
    tuned = finetune(model, task="classify", strategy="bitfit", overrides=overrides, **files)
    assert tuned.metrics["accuracy"].value == 1.0


def test_many_labels_are_learned(models: dict[str, Path], tmp_path: Path) -> None:
    """Lists of labels stand as JSON in a table, too; a text may have none."""
    words = {"red": "colour", "dog": "animal"}
    texts = ["red dog", "red book", "dog school", "river book", "street red", "garden dog"]
    rows = [(t, json.dumps([words[w] for w in t.split() if w in words])) for t in texts * 8]
    train = table(tmp_path / "many.tsv", "text label", rows)
    files = {"train": train, "dev": train, "out": tmp_path / "run"}
    overrides = TINY | {"learning_rate": 1e-2, "steps": 40}
    tuned = finetune(models["encoder"], task="classify", overrides=overrides, **files)
    assert tuned.model.config.labels == ("animal", "colour")
    assert tuned.metrics["exact"].value == 1.0
    assert evaluate(tuned.path, data=train).metrics["micro_f1"].value == 1.0
    said = predict(tuned.path, data=train).answers[:4]
    assert [a["labels"] for a in said] == [["animal", "colour"], ["colour"], ["animal"], []]


@pytest.mark.parametrize("architecture", ALL)
def test_tags_are_learned(architecture: str, models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = named(tmp_path)
    files = {"train": train, "dev": dev, "out": tmp_path / "run"}
    overrides = TINY | {"learning_rate": 1e-2, "steps": 40}
    tuned = finetune(models[architecture], task="tag", overrides=overrides, **files)
    assert tuned.metrics["f1"].value > 0.9
    answer = predict(tuned.path, data=dev).answers[0]
    spans = [(e["type"], e["text"]) for e in answer["entities"]]
    told = zip(answer["words"], answer["tags"], strict=True)
    assert spans == [(tag.removeprefix("B-"), word) for word, tag in told if tag != "O"]


@pytest.mark.parametrize("architecture", ALL)
def test_spans_are_learned(architecture: str, models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = asked(tmp_path)
    files = {"train": train, "dev": dev, "out": tmp_path / "run"}
    overrides = TINY | {"learning_rate": 1e-2, "steps": 60}
    tuned = finetune(models[architecture], task="span", overrides=overrides, **files)
    assert tuned.metrics["f1"].value > 90
    found = predict(tuned.path, data=dev)
    for example, answer in zip(found.examples, found.answers, strict=True):
        assert example.context[answer["begin"] : answer["end"]] == answer["answer"]


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_writing_is_learned(architecture: str, models: dict[str, Path], tmp_path: Path) -> None:
    train, dev = copied(tmp_path)
    files = {"train": train, "dev": dev, "out": tmp_path / "run"}
    overrides = TINY | {"learning_rate": 1e-2, "steps": 100, "max_grad_norm": 0}
    tuned = finetune(models[architecture], task="seq2seq", overrides=overrides, **files)
    said = [answer["text"] for answer in predict(tuned.path, data=dev).answers]
    assert said == [example.target for example in read_translated(TaskFile(dev))]


def test_a_thawed_network_changes_from_the_top(models: dict[str, Path], tmp_path: Path) -> None:
    """ULMFiT: the head alone at first, then the last block; half way through, everything."""
    train, dev = coloured(tmp_path)
    before = dict(load(models["encoder"]).network.named_parameters())
    changed = {}
    for steps in (1, 16):  # of 4 to an epoch
        run = tmp_path / str(steps)
        overrides = TINY | {
            "learning_rate": 1e-2,
            "steps": steps,
            "schedule": "constant",
            "warmup": 0,
        }
        files = {"train": train, "dev": dev, "out": run}
        tuned = finetune(
            models["encoder"], task="classify", strategy="gradual", overrides=overrides, **files
        )
        own = dict(tuned.model.network.named_parameters())
        changed[steps] = {n for n, p in own.items() if n in before and not p.equal(before[n])}
    assert changed[1] == set()
    assert {name.split(".")[2] for name in changed[16] if "blocks" in name} == {"0", "1"}
    assert "tokens.weight" in changed[16]
    assert [unfrozen_groups(step / 16, 0, 3) for step in (0, 3, 6, 8)] == [0, 1, 2, 3]
    assert unfrozen_groups(0.01, epoch=2, groups=3) == 2
