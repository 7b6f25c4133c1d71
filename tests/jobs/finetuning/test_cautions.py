"""Notes of a fine-tuning run about its data and training, each caused for real."""

from __future__ import annotations

import errno
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import predict
from firth.model import load
from firth.tasks.dataset import (
    TaskDataset,
    balanced_label_weights,
    load_dataset,
    with_label_weights,
)
from firth.tasks.diagnostics import check_training
from firth.tasks.inputs import InputTemplate
from firth.tasks.linear_probe import STRENGTHS, choose_strength
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.examples import ChoiceExample, LabelledExample
from firth.tasks.registry import task_named
from firth.tasks.task import TaskMetadata
from firth.tasks.task_heads import attach_head
from firth.tasks.task_trainer import TaskTrainer, build_task_trainer
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.losses import TrainingModule, label_logits
from firth.training.run_directory import read_metrics
from tests.jobs.finetuning.conftest import save
from tests.jobs.finetuning.toys import TINY, WORDS, coloured, sums, table


@pytest.fixture
def run(models: dict[str, Path], tmp_path: Path) -> Callable[..., FinetuneResult]:
    """Fine-tune the encoder on colours."""

    def tune(**options: Any) -> FinetuneResult:
        train, dev = coloured(tmp_path)
        overrides = TINY | options.pop("overrides", {})
        given = {"train": train, "dev": dev, "out": tmp_path / "run", **options}
        return finetune(models["encoder"], task="classify", overrides=overrides, **given)

    return tune


def noted(tuned: FinetuneResult, words: str) -> bool:
    """Return whether a run's result, log and model card have such a note."""
    found = [note for note in tuned.notes if words in note]
    written = [line["note"] for line in read_metrics(tuned.path) if line["kind"] == "note"]
    assert found == [note for note in written if words in note]
    assert all(note in (tuned.path / "README.md").read_text(encoding="utf-8") for note in found)
    return bool(found)


# ---- during training


def test_a_learning_rate_that_is_too_high_is_noted(run: Callable[..., FinetuneResult]) -> None:
    tuned = run(overrides={"learning_rate": 10.0, "steps": 12, "validate_every": 0.25, "warmup": 0})
    assert noted(tuned, "constant prediction has 0.693")


def test_a_good_learning_rate_has_no_note(run: Callable[..., FinetuneResult]) -> None:
    tuned = run(overrides={"learning_rate": 3e-3, "steps": 60, "validate_every": 0.25})
    assert tuned.notes == []


def test_overfitting_is_noted(run: Callable[..., FinetuneResult], tmp_path: Path) -> None:
    """Random labels can be memorised, but do not generalise."""
    draw = random.Random(0)

    def rows(count: int) -> list[tuple[str, str]]:
        texts = (" ".join(draw.choices(WORDS, k=6)) for _ in range(count))
        return [(text, draw.choice("xy")) for text in texts]

    train, dev = (
        table(tmp_path / f"{name}.tsv", "text label", rows(24)) for name in ("train", "dev")
    )
    overrides = {"learning_rate": 1e-2, "steps": 60, "validate_every": 0.1, "patience": 0}
    tuned = run(train=train, dev=dev, overrides=overrides)
    assert noted(tuned, "the model overfits")


def test_early_stopping(run: Callable[..., FinetuneResult], tmp_path: Path) -> None:
    """With perfect accuracy nothing improves: a run with patience ends before its budget."""
    overrides = {"learning_rate": 3e-3, "steps": 400, "validate_every": 0.1, "patience": 2}
    tuned = run(overrides=overrides)
    assert tuned.metrics["accuracy"].value > 0.9
    assert tuned.steps < 400


@pytest.mark.nightly
def test_forgetting(models: dict[str, Path], stories: Path, tmp_path: Path) -> None:
    """A decoder learns the stories, then colours, with and without replay of the stories."""
    text, quick = stories / "dev.txt", TINY | {"learning_rate": 1e-2, "steps": 40}
    given = {"train": text, "dev": stories / "test.txt"}
    base = finetune(
        models["decoder"], task="lm", overrides=quick, out=tmp_path / "base", **given
    ).path
    train, dev = coloured(tmp_path)

    def tuned(name: str, steps: int, **options: Any) -> FinetuneResult:
        files = {"train": train, "dev": dev, "out": tmp_path / name, **options}
        return finetune(base, task="classify", overrides=quick | {"replay_every": steps}, **files)

    alone = tuned("alone", steps=100, replay=text)
    assert noted(alone, "reduces forgetting")
    assert noted(tuned("beside", steps=1, replay=text), "nothing was forgotten")
    assert not noted(tuned("unknown", steps=1), "replayed text")


def test_metrics_of_examples_that_selected_the_checkpoint_are_marked(
    run: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    """By several validations, also if some of the examples are evaluated again elsewhere."""
    plain = run(overrides={"steps": 2}, out=tmp_path / "plain")
    _, dev = coloured(tmp_path)
    assert plain.selected_on == plain.values()["selected_on"] == []
    assert evaluate(plain.path, data=dev).selected_on == []
    tuned = run(overrides={"steps": 2, "validate_every": 0.5})
    assert tuned.selected_on == tuned.values()["selected_on"] == ["checkpoint"]
    assert "The checkpoint was selected" in (tuned.path / "README.md").read_text(encoding="utf-8")
    same = dev.read_text(encoding="utf-8").splitlines()[1:4]
    rows = [*(line.split("\t") for line in same), ("another red text", "x")]
    found = evaluate(tuned.path, data=table(tmp_path / "some.tsv", "text label", rows))
    assert found.selected_on == found.values()["selected_on"] == ["checkpoint"]
    assert any("3 of the 4 examples" in note for note in found.notes)
    other = table(tmp_path / "other.tsv", "text label", rows[3:])
    assert evaluate(tuned.path, data=other).selected_on == []
    train = evaluate(tuned.path, data=tmp_path / "colours.tsv")
    assert any("fine-tuned on" in note and "colours.tsv" in note for note in train.notes)


def test_one_class_for_everything_is_noted(
    run: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    """A text with both labels has one prediction."""
    rows = [("red dog", "x")] * 18 + [("red dog", "y")] * 6
    train = table(tmp_path / "mixed.tsv", "text label", rows)
    tuned = run(train=train, dev=train, strategy="probe")
    assert noted(tuned, "All 24 predictions are 'x'")
    for found in (evaluate(tuned.path, data=train), predict(tuned.path, data=train)):
        assert any("All 24 predictions are 'x'" in note for note in found.notes)
    other = table(tmp_path / "other.tsv", "text label", rows[:18])  # whose only class is x
    assert not any("predictions" in note for note in evaluate(tuned.path, data=other).notes)


def test_a_full_disk(run: Callable[..., FinetuneResult], monkeypatch: pytest.MonkeyPatch) -> None:
    """The best weights cannot be saved: the last ones are, with a note."""

    def full(path: Path, tensors: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("firth.tasks.task_trainer.write_weights", full)
    tuned = run(overrides={"learning_rate": 3e-3, "steps": 60, "validate_every": 0.5})
    assert noted(tuned, "The disk was full")
    assert tuned.metrics["accuracy"].value > 0.9


def test_notes_about_losses() -> None:
    def said(losses: list[float], guess: float | None = 0.693, learned: float = 0.6) -> str:
        return " ".join(check_training([0.7, learned], losses, guess))

    assert said([0.694]) == ""
    assert "learning rate is too high" in said([0.8, 0.9])
    assert "overfits" in said([0.8, 0.9], learned=0.1)
    assert "overfits" in said([0.5, 0.6])
    assert said([0.0001, 0.0002]) == ""  # nothing that matters has changed
    assert "rose" not in said([0.8], learned=0.1)
    assert "overfits" not in " ".join(check_training([0.5, 0.5], [0.8, 0.8], 0.693))
    assert said([0.8], guess=None) == ""
    assert said([]) == ""


def test_losses_of_a_constant_prediction() -> None:
    classify, regress, choice = map(task_named, ("classify", "regress", "choice"))
    metadata = TaskMetadata(task="classify", labels=("x", "y"))
    rows = [LabelledExample(text="", label=label) for label in "xxxy"]
    by_hand = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert classify.constant_loss(rows, metadata) == pytest.approx(by_hand)
    assert classify.constant_loss(rows[:3], metadata) is None  # one label: no guess is better
    # The mean is 3, the squared errors 4, 1 and 9.
    numbers = [LabelledExample(text="", label=float(n)) for n in (1, 2, 6)]
    metadata = TaskMetadata(task="regress", labels=("score",), label_type="number")
    assert regress.constant_loss(numbers, metadata) == pytest.approx(14 / 3)
    choices = [ChoiceExample(text="", choices=("a",) * n, label=0) for n in (2, 4)]
    expected = (math.log(2) + math.log(4)) / 2
    assert choice.constant_loss(choices, TaskMetadata(task="choice")) == pytest.approx(expected)


# ---- before training


def uneven(path: Path) -> Path:
    rows = [("red dog", "x")] * 18 + [("green dog", "y")] * 2
    return table(path / "uneven.tsv", "text label", rows)


def test_uneven_labels(run: Callable[..., FinetuneResult], tmp_path: Path) -> None:
    train, overrides = uneven(tmp_path), {"steps": 2}
    plain = run(train=train, overrides=overrides, out=tmp_path / "plain")
    assert noted(plain, "(x 90.0%, y 10.0%); --balance")
    weighed = run(train=train, overrides=overrides, balance=True, out=tmp_path / "weighed")
    assert noted(weighed, "(x 90.0%, y 10.0%); they are weighted")
    own, other = (dict(t.model.network.named_parameters()) for t in (plain, weighed))
    assert any(not own[name].equal(other[name]) for name in own)


def test_the_weighted_loss_equals_a_manual_computation(models: dict[str, Path]) -> None:
    """Three of x and one of y: x counts 4 / (2 · 3), y counts 4 / (2 · 1)."""
    task = task_named("classify")
    metadata = TaskMetadata(task="classify", labels=("x", "y"), max_length=16)
    rows = [
        LabelledExample(text=text, label=label)
        for text, label in zip(WORDS[:4], "xxyx", strict=True)
    ]
    weights = balanced_label_weights(task, rows, metadata)
    assert weights == {0: pytest.approx(2 / 3), 1: pytest.approx(2.0)}
    model = load(models["encoder"])
    attach_head(model.network, "classify", metadata, {}, seed=0)
    model.network.eval()
    template = InputTemplate(model.require_tokenizer(), model.config, 16)
    batch = task.batch(task.encode(rows, template, metadata), metadata, model.config)
    with torch.no_grad():
        shares = label_logits(model.network, batch).double().softmax(-1).numpy()
        term = TrainingModule(model.network)(with_label_weights(batch, weights))["label"]
    right = [0, 0, 1, 0]
    losses = -np.log(shares[np.arange(4), right])
    expected = 2 / 3 * (losses[0] + losses[1] + losses[3]) + 2.0 * losses[2]
    assert float(term.sum) == pytest.approx(expected, rel=1e-5)
    assert term.count == 4  # so that the whole loss has the size of a plain one
    other = torch.nn.CrossEntropyLoss(torch.tensor([2 / 3, 2.0]), reduction="sum")
    logits = torch.from_numpy(np.log(shares)).float()
    assert float(term.sum) == pytest.approx(float(other(logits, torch.tensor(right))), rel=1e-5)


def test_a_probe_uses_label_weights(run: Callable[..., FinetuneResult], tmp_path: Path) -> None:
    """One text with both labels: a plain head predicts their frequencies, a weighted one half."""
    rows = [("red dog", "x")] * 18 + [("red dog", "y")] * 6
    train = table(tmp_path / "mixed.tsv", "text label", rows)
    shares = {}
    for balance in (False, True):
        out = tmp_path / f"run-{balance}"
        tuned = run(train=train, strategy="probe", balance=balance, out=out)
        shares[balance] = predict(tuned.path, data=train).answers[0]["scores"]["x"]
    assert shares[False] == pytest.approx(0.75, abs=0.02)
    assert shares[True] == pytest.approx(0.5, abs=0.02)


def test_the_penalty_of_a_probe_uses_label_weights() -> None:
    """Of random vectors, the strongest: confident predictions only help if x counts more."""
    metadata = TaskMetadata(task="classify", labels=("x", "y"))
    right = np.array([0] * 90 + [1] * 10)
    weights = {0: 100 / 180, 1: 100 / 20}
    for seed in range(4):
        seen = np.random.default_rng(seed).normal(size=(100, 5)).astype(np.float32)
        assert choose_strength(seen, right, metadata, np.arange(100), weights) == min(STRENGTHS)


def test_the_dev_loss_uses_label_weights(
    run: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    """Nine of x to one of y: an untrained head has a weighted loss of ln 2, which has no note.

    Without weights, a constant prediction has a loss of 0.325.
    """
    train = uneven(tmp_path)
    slow = {"learning_rate": 1e-12, "steps": 2, "validate_every": 1.0}
    given = {"train": train, "dev": train, "overrides": slow}
    plain = run(out=tmp_path / "plain", **given)
    assert noted(plain, "constant prediction has 0.325")
    tuned = run(balance=True, out=tmp_path / "run", **given)
    assert not noted(tuned, "learning rate is too high")
    assert not noted(tuned, "overfits")
    answers = predict(tuned.path, data=train).answers
    red, green = (-math.log(answers[i]["scores"][label]) for i, label in ((0, "x"), (-1, "y")))
    (line,) = (line for line in read_metrics(tuned.path) if line["kind"] == "validation")
    assert line["loss"] == pytest.approx((red + green) / 2, rel=1e-5)
    assert line["loss"] == pytest.approx(math.log(2), rel=0.05)


@pytest.mark.parametrize(("balance", "times"), [(False, 1), (True, 2)])
def test_the_best_validation_uses_label_weights(
    balance: bool, times: int, run: Callable[..., FinetuneResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two validations, the first has a better accuracy, the second a better macro F1."""
    found = iter([{"accuracy": 0.9, "macro_f1": 0.5}, {"accuracy": 0.8, "macro_f1": 0.7}])
    kept: list[Path] = []
    monkeypatch.setattr(TaskTrainer, "validate", lambda trainer: {"loss": 1.0, **next(found)})
    monkeypatch.setattr(TaskTrainer, "save_best", lambda trainer, out: kept.append(out))
    run(balance=balance, overrides={"steps": 4, "validate_every": 0.5})
    assert len(kept) == times


def test_dev_examples_in_the_training_data_are_noted(
    run: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    train, dev = coloured(tmp_path)
    seen = train.read_text(encoding="utf-8").splitlines(keepends=True)[1:4]
    dev = dev.rename(tmp_path / "seen.tsv")
    with dev.open("a", encoding="utf-8") as file:
        file.writelines(seen)
    tuned = run(dev=dev, overrides={"steps": 2})
    assert noted(tuned, f"3 of the 35 examples in {dev}")


def test_unknown_tokens_are_noted(run: Callable[..., FinetuneResult], tmp_path: Path) -> None:
    rows = [("το σπίτι είναι κόκκινο", "x"), ("το ποτάμι είναι πράσινο", "y")] * 8
    greek = table(tmp_path / "greek.tsv", "text label", rows)
    tuned = run(train=greek, overrides={"steps": 2})
    assert noted(tuned, "of the tokens are unknown to this model's tokenizer")


def test_a_tokenizer_of_another_size_is_noted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = save("encoder-tiny", tokenizer, tmp_path / "wide", vocab_size=2 * len(tokenizer))
    train, dev = coloured(tmp_path)
    files = {"train": train, "dev": dev, "out": tmp_path / "run"}
    tuned = finetune(model, task="classify", overrides=TINY | {"steps": 1}, **files)
    assert noted(tuned, "may belong to another model")


def test_few_examples_are_cross_validated(
    run: Callable[..., FinetuneResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example is predicted once, by a model that was not trained on it."""
    seen = []

    def spy(config: Any, network: Any, tokenizer: Any, dataset: TaskDataset, *rest: Any) -> Any:
        seen.append(dataset)
        return build_task_trainer(config, network, tokenizer, dataset, *rest)

    monkeypatch.setattr("firth.jobs.finetune_setup.build_task_trainer", spy)
    tuned = run(dev=None, overrides={"steps": 2, "validate_every": 0.5})
    assert noted(tuned, "64 examples are too few to hold out 50")
    assert noted(tuned, "5-fold cross-validation")
    assert tuned.examples == (64, 64)
    assert (tuned.evaluated_on, tuned.selected_on) == ("cross-validation", [])
    assert "(cross-validation)" in (tuned.path / "README.md").read_text(encoding="utf-8")
    whole, *folds = seen
    everything = {example.line for example in whole.train}
    assert (len(everything), len(folds)) == (64, 5)
    assert sorted(e.line for fold in folds for e in fold.dev) == sorted(everything)
    for fold in folds:
        assert {e.line for e in fold.train} == everything - {e.line for e in fold.dev}
        assert len({e.label for e in fold.dev}) == 2
    assert not any(path.is_dir() for path in tuned.path.iterdir())


def test_an_interrupted_cross_validation_is_resumed(
    run: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    def stop(kind: str, metrics: dict[str, Any]) -> None:
        if metrics.get("run") == "fold 2 of 5":
            raise KeyboardInterrupt

    options = {"dev": None, "overrides": {"steps": 2}}
    whole = run(out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        run(callback=stop, **options)
    resumed = run(resume=True, **options)
    assert resumed.metrics == whole.metrics
    assert sums(resumed.path) == sums(whole.path)


def test_too_few_examples_are_evaluated_themselves(
    run: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    """Two examples, or twelve of which all but one have the same label."""
    two = table(tmp_path / "two.tsv", "text label", [("red dog", "x"), ("green dog", "y")])
    rows = [("red dog", "x")] * 11 + [("green dog", "y")]
    alike = table(tmp_path / "alike.tsv", "text label", rows)
    for train, count in ((two, 2), (alike, 12)):
        tuned = run(train=train, dev=None, overrides={"steps": 2}, out=tmp_path / train.stem)
        assert noted(tuned, "computed on the training examples")
        assert tuned.examples == (count, count)
        assert tuned.evaluated_on == "training examples"


def test_held_out_examples_are_stratified(tmp_path: Path) -> None:
    rows = [("red dog", "x")] * 400 + [("green dog", "y")] * 100
    train = table(tmp_path / "fifth.tsv", "text label", rows)
    options = {"limit": 250, "seed": 3, "max_length": 16, "options": {}}
    dataset = load_dataset(task_named("classify"), TaskFile(train), None, **options)
    assert Counter(e.label for e in dataset.train) == {"x": 160, "y": 40}
    assert Counter(e.label for e in dataset.dev) == {"x": 40, "y": 10}  # 50, more than a tenth
    assert dataset.evaluated_on == "held-out examples"
    assert "50 of the 250 examples are held out" in dataset.notes[0]
