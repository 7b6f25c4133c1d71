"""Sweeps over seeds, hyperparameters and strategies, and stratified samples."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.jobs import sweep
from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.metrics.bootstrap import Metric
from firth.model import load
from firth.tasks.dataset import load_dataset
from firth.tasks.finetune_recipes import ALL_STRATEGIES
from firth.tasks.readers.columns import TaskFile
from firth.tasks.registry import task_named
from firth.utils.errors import FirthError, InputError, Interrupted, UsageError
from tests.jobs.finetuning.test_dry_run import check_counts
from tests.jobs.finetuning.toys import TINY, coloured, table

SHORT = TINY | {"steps": 3}


@pytest.fixture
def options(models: dict[str, Path], tmp_path: Path) -> dict[str, Any]:
    train, dev = coloured(tmp_path)
    return {"model": models["encoder"], "task": "classify", "train": train, "dev": dev}


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=3, deadline=None)
def test_samples_are_stratified(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = [("red dog", "x")] * 70 + [("green dog", "y")] * 20 + [("grey dog", "z")] * 10
    train = table(tmp_path_factory.mktemp("many") / "many.tsv", "text label", rows)
    options: dict[str, Any] = {"seed": seed, "max_length": 16, "options": {}}
    for limit, counts in ((20, (14, 4, 2)), (50, (35, 10, 5)), (1000, (70, 20, 10))):
        file = TaskFile(train)
        made = load_dataset(task_named("classify"), file, file, limit=limit, **options)
        found = Counter(example.label for example in made.train)
        assert tuple(found[label] for label in "xyz") == counts
        assert made.metadata.labels == ("x", "y", "z")


def test_seeds(options: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "seeds"
    swept = sweep.seeds(2, out, seed=5, strategy="lora", overrides=SHORT, **options)
    assert [trial.name for trial in swept.runs] == ["seed-5", "seed-6"]
    runs = [evaluate(out / trial.name, data=options["dev"]) for trial in swept.runs]
    values = [run.metrics["accuracy"].value for run in runs]
    mean, deviation = swept.mean()["accuracy"]
    assert mean == pytest.approx(statistics.mean(values))
    assert deviation == pytest.approx(statistics.stdev(values))
    written = json.loads((out / "seeds.json").read_text())
    assert written["mean"]["accuracy"] == {"mean": mean, "deviation": deviation}
    assert written["selected_on"] == ["seed"]
    chosen = {trial.name: run.selected_on for trial, run in zip(swept.runs, runs, strict=True)}
    assert chosen == {trial.name: ["seed"] * (trial.name == swept.best) for trial in swept.runs}
    assert "The seed was selected" in (out / swept.best / "README.md").read_text(encoding="utf-8")
    jobs = [json.loads((out / t.name / "run.json").read_text())["job"] for t in swept.runs]
    assert [job["training"]["seed"] for job in jobs] == [5, 6]
    assert {job["strategy"] for job in jobs} == {"lora"}
    with pytest.raises(InputError) as caught:
        evaluate(out, data=options["dev"])
    assert str(out / swept.best) in str(caught.value)
    (out / "seeds.json").write_text("[]", encoding="utf-8")  # not of a sweep
    with pytest.raises(InputError, match="seeds holds no model: there is no config"):
        evaluate(out, data=options["dev"])


@pytest.mark.nightly
def test_balanced_sweeps_choose_by_macro_f1(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same runs, ranked by accuracy or by macro F1."""
    scores = iter([(0.9, 0.5), (0.8, 0.7)] * 2)

    def tuned(**given: Any) -> FinetuneResult:
        made = finetune(**given)
        values = zip(("accuracy", "macro_f1"), next(scores), strict=True)
        return replace(
            made, metrics={name: Metric(value=value, low=0.0, high=1.0) for name, value in values}
        )

    monkeypatch.setattr(sweep, "finetune", tuned)
    for balance, metric, best in ((False, "accuracy", "seed-0"), (True, "macro_f1", "seed-1")):
        given = {"balance": balance, "overrides": TINY | {"steps": 1}, **options}
        swept = sweep.seeds(2, tmp_path / metric, **given)
        assert (swept.metric, swept.best) == (metric, best)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_search(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0, 6 and 8 frozen blocks of 12 are 0 and 1 of 2; learning rates grow with (768 / 32)²."""
    monkeypatch.setattr(sweep, "LEARNING_RATES", (1e-9, 8e-6))
    overrides = {"steps": 30, "precision": "fp32", "max_length": 32, "validate_every": 1.0}
    out = tmp_path / "search"
    swept = sweep.search(out, overrides=overrides, **options)
    names = [trial.name for trial in swept.runs]
    assert len(names) == 8
    assert names[0] == "lr=5.8e-07,batch_size=16,freeze=0"
    assert {name.split(",")[2] for name in names} == {"freeze=0", "freeze=1"}
    best = max(swept.done, key=lambda pair: pair[1].metrics["accuracy"].value)
    assert swept.best == best[0].name
    assert swept.best.startswith("lr=4.6e-03")
    again = evaluate(out, data=options["dev"])
    assert again.metrics["accuracy"].value == best[1].metrics["accuracy"].value
    card = (out / "README.md").read_text(encoding="utf-8")
    assert f"firth predict {out} --data FILE" in card
    assert json.loads((out / "run.json").read_text())["results"]["out"] == str(out)
    assert (out / "search" / "search.json").is_file()


def test_a_search_within_a_budget(options: dict[str, Any], tmp_path: Path) -> None:
    overrides = {"steps": 1, "precision": "fp32", "max_length": 32}
    swept = sweep.search(tmp_path / "out", minutes=1e-9, overrides=overrides, **options)
    assert len(swept.runs) == 1  # at least one
    [note] = swept.notes
    assert all(fact in note for fact in ("1e-09 minutes", "1 of 12 runs"))
    assert load(tmp_path / "out").task is not None


def test_strategies(options: dict[str, Any], tmp_path: Path) -> None:
    names = ["full", "lora:rank=2", "bitfit"]
    notes: list[str] = []
    names_seen: set[str] = set()

    def listen(kind: str, metrics: dict[str, Any]) -> None:
        notes.append(metrics.get("note", ""))
        names_seen.add(metrics["run"])

    swept = sweep.strategies(
        names,
        tmp_path / "out",
        overrides=SHORT,
        callback=listen,
        **{**options, "dev": None},
    )
    assert [trial.name for trial in swept.runs] == ["full", "lora-rank=2", "bitfit"]
    assert "no biases" in swept.runs[2].why  # of this network
    full, lora = (tuned for _, tuned in swept.done)
    assert full.trainable_parameters == full.model.num_parameters
    assert 0 < lora.trainable_parameters < full.trainable_parameters / 10
    assert lora.saved_bytes < full.saved_bytes
    values = swept.values()["runs"]
    assert values[2] == {"name": "bitfit", "why": swept.runs[2].why}
    assert sum("no dev set" in note for note in notes) == 1  # once, not for each run
    assert names_seen == {"full", "lora-rank=2"}


def test_an_interrupt_ends_the_sweep(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path] = []

    def stopped(*, out: Path, **options: Any) -> None:
        begun.append(out)
        raise Interrupted("as asked")

    monkeypatch.setattr(sweep, "finetune", stopped)
    with pytest.raises(Interrupted):
        sweep.strategies(["full", "lora"], tmp_path / "out", **options)
    assert len(begun) == 1


@pytest.mark.slow
@pytest.mark.nightly
def test_all_strategies(options: dict[str, Any], tmp_path: Path) -> None:
    swept = sweep.strategies(["all"], tmp_path / "out", overrides=SHORT, **options)
    names = [trial.name for trial in swept.runs]
    assert names == [name.replace(":half", "-1") for name in ALL_STRATEGIES]
    assert [trial.name for trial in swept.runs if trial.result is None] == ["bitfit"]
    found = finetune(**options, overrides=SHORT, dry_run=True)  # the same, without training
    for row, (_, real) in zip(found.rows, swept.done, strict=True):
        check_counts(row, real.values())
    assert len([note for note in found.notes if note.startswith("bitfit: ")]) == 1


def test_the_lowest_perplexity_is_best(
    models: dict[str, Path], stories: Path, tmp_path: Path
) -> None:
    files = {"train": stories / "dev.txt", "dev": stories / "test.txt"}
    swept = sweep.strategies(
        ["full", "ia3"],
        tmp_path / "out",
        model=models["decoder"],
        task="lm",
        overrides=SHORT | {"learning_rate": 3e-2},
        **files,
    )
    metrics = {trial.name: tuned.metrics["perplexity"].value for trial, tuned in swept.done}
    assert swept.metric == "perplexity"
    assert swept.best == min(metrics, key=metrics.__getitem__)
    assert len(set(metrics.values())) == 2


def test_other_files_are_not_overwritten(
    options: dict[str, Any], tmp_path: Path, tune: Callable[..., FinetuneResult]
) -> None:
    out = tmp_path / "taken"
    out.mkdir()
    (out / "letter.txt").write_text("Dear", encoding="utf-8")
    for run in (
        lambda: sweep.seeds(2, out, overrides=SHORT, **options),
        lambda: sweep.search(out, overrides={"steps": 1}, **options),
        lambda: sweep.strategies(["full", "lora"], out, overrides=SHORT, **options),
    ):
        with pytest.raises(UsageError, match="is not empty"):
            run()
    assert [path.name for path in out.iterdir()] == ["letter.txt"]


def test_a_sweep_without_any_result_is_an_error(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FirthError, match=r"All runs .*no biases"):
        sweep.strategies(["bitfit"], tmp_path / "out", overrides=SHORT, **options)
