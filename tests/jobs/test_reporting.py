"""`firth.report` and `firth report`: lineage, settings, losses, metrics, samples and bad runs."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import firth
from firth.jobs.run_report.lineage import CHANGED, MISSING, UNCHANGED, UNSTORED
from firth.utils.errors import InputError, UsageError
from firth.utils.files import locked, sha256
from tests.conftest import SAMPLE, Result

if TYPE_CHECKING:
    from playwright.sync_api import Page

EVIL = "<script>alert(1)</script>"
SIZES = {"num_layers": 1, "hidden_size": 24, "num_heads": 2, "ffn_size": 32}
TINY = {f"model.{name}": size for name, size in SIZES.items()} | {
    "validate_every": 0.5,
    "batch_tokens": 256,
    "max_length": 32,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Path:
    """A folder with a pre-trained model, and two models fine-tuned from it."""
    folder = tmp_path_factory.mktemp("runs")
    text, rows = folder / "text.txt", folder / "rows.tsv"
    text.write_text(SAMPLE, encoding="utf-8")
    pairs = [f"{word} sea\t{label}" for word, label in (("calm", "a"), ("wild", "b")) * 8]
    rows.write_text("\n".join(["text\tlabel", *pairs]) + "\n")
    shards = folder / "shards"
    firth.prepare([text], valid=[text], tokenizer=bert, out=shards, workers=1)
    pretrain: dict[str, Any] = {"data": shards, "steps": 2, "device": "cpu"}
    firth.pretrain(preset="encoder-tiny", out=folder / "base", overrides=TINY, **pretrain)
    tune: dict[str, Any] = {"task": "classify", "train": rows, "dev": rows, "device": "cpu"}
    firth.finetune(folder / "base", out=folder / "full", epochs=1, **tune)
    firth.finetune(folder / "full", out=folder / "lora", epochs=1, strategy="lora", seed=3, **tune)
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    for name in ("full", "lora"):
        shutil.copytree(trained / name, tmp_path / "runs" / name)
    return tmp_path / "runs"


def run_json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((path / "run.json").read_text())
    return values


def change(path: Path, **changes: Any) -> None:
    values = {name: v for name, v in (run_json(path) | changes).items() if v is not None}
    (path / "run.json").write_text(json.dumps(values))


def one(path: Path) -> dict[str, Any]:
    [values] = firth.report(path).values()["runs"]
    return dict(values)


def inputs(origin: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {below["role"]: below for below in origin["inputs"]}


def log(path: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


# ---- contents ---------------------------------------------------------------------------------


def test_lineage_leads_back_to_the_text(trained: Path, bert: Path) -> None:
    lora = one(trained / "lora")["lineage"]
    assert inputs(lora)["adapter"]["sha256"] == sha256(trained / "lora/adapter_model.safetensors")
    full = inputs(lora)["base model"]
    assert (full["path"], full["state"]) == (str(trained / "full"), UNCHANGED)
    assert inputs(full)["training examples"]["sha256"] == sha256(trained / "rows.tsv")
    base = inputs(full)["base model"]
    assert base["sha256"] == sha256(trained / "base/model.safetensors")
    assert base["date"] == run_json(trained / "base")["started"][:16].replace("T", " ")
    tokenizer = firth.load_tokenizer(bert)
    assert inputs(base)["tokenizer"]["sha256"] == tokenizer.fingerprint
    text = inputs(inputs(base)["shards"])["train text"]
    assert (text["path"], text["state"]) == (str(trained / "text.txt"), UNCHANGED)


def test_parents_that_were_deleted_or_changed_are_named(trained: Path, runs: Path) -> None:
    parents = run_json(runs / "lora")["parents"]
    for path, state in ((trained / "base", CHANGED), (runs / "gone", MISSING)):
        change(runs / "lora", parents={"model": parents["model"] | {"path": str(path)}})
        report = firth.report(runs / "lora")
        lineage = report.values()["runs"][0]["lineage"]
        assert inputs(lineage)["base model"]["state"] == state
        [warning] = report.values()["notes"]
        assert str(path) in warning
    change(runs / "lora", parents={"model": {"path": "a model in memory", "sha256": "0"}})
    assert inputs(one(runs / "lora")["lineage"])["base model"]["state"] == UNSTORED


def test_relative_paths_are_those_of_the_working_directory_of_the_run(
    trained: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = run_json(runs / "lora")["parents"]["model"]
    change(runs / "lora", parents={"model": parent | {"path": "runs/full"}})
    monkeypatch.chdir(trained)
    assert inputs(one(runs / "lora")["lineage"])["base model"]["path"] == str(runs / "full")


def test_a_run_that_is_its_own_parent_ends(runs: Path) -> None:
    parent = {"path": str(runs / "full"), "sha256": "0"}
    change(runs / "full", parents={"model": parent})
    found = inputs(one(runs / "full")["lineage"])["base model"]
    assert "base model" not in inputs(found)


def test_settings_that_differ_come_first(trained: Path) -> None:
    report = firth.report([trained / "full", trained / "lora"])
    full, lora = (run["settings"] for run in report.values()["runs"])
    different = report.values()["different_settings"]["fine-tuning"]
    assert set(different) == {name for name in full if full[name] != lora[name]}
    assert {"strategy", "seed", "model"} <= set(different)
    table, equal = report.settings["fine-tuning"].figures("")
    assert [row[0] for row in table.rows] == different
    assert equal.folded
    assert {name for name, *_ in equal.rows} == full.keys() - set(different)


def test_losses_are_those_of_the_log(trained: Path) -> None:
    losses = one(trained / "base")["losses"]
    for name, kind in (("training", "step"), ("validation", "validation")):
        lines = log(trained / "base", kind)
        assert [(p["steps"], p["tokens"], p["loss"]) for p in losses[name]] == [
            (line["step"], line["tokens"], line["loss"]) for line in lines
        ]
    seconds = {line["step"]: line["seconds"] for line in log(trained / "base", "step")}
    assert all(point["seconds"] == seconds[point["steps"]] for point in losses["validation"])


def test_metrics_have_their_intervals_and_cost(trained: Path) -> None:
    stored = run_json(trained / "lora")["results"]
    found = one(trained / "lora")
    for name in ("metrics", "evaluated_on", "n", "seconds", "parameters", "trainable_parameters"):
        assert found[name] == stored[name]
    base = one(trained / "base")
    assert base["metrics"]["loss"]["value"] == log(trained / "base", "validation")[-1]["loss"]
    assert base["trainable_parameters"] == base["parameters"]


def test_samples_are_those_of_every_validation(trained: Path) -> None:
    lines = log(trained / "base", "validation")
    found = one(trained / "base")["samples"]
    assert len(found) == 2
    assert [(s["step"], list(s["texts"])) for s in found] == [
        (line["step"], line["samples"]) for line in lines
    ]
    assert one(trained / "full")["samples"] == []


# ---- bad runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, "", '{"a": 1}', '{"versions": {"firth": "1"}'])
def test_what_is_no_run_is_an_error(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if text is not None:
        path.mkdir()
        (path / "run.json").write_text(text)
    with pytest.raises(InputError, match=re.escape(str(path))):
        firth.report(path)


def test_an_empty_folder_a_file_and_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match="run director"):
            firth.report(path)
    with pytest.raises(UsageError):
        firth.report([])


def test_unfinished_runs_are_shown_and_marked(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(trained / "base", path)
    change(path, finished=False, results=None)
    first, *_ = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_bytes(first.encode() + b'\n{"kind": "st\xff')
    report = firth.report(path)
    run = report.values()["runs"][0]
    assert (run["status"], run["progress"]) == ("interrupted", 0.5)
    assert len(run["losses"]["training"]) == 1
    assert any("metrics.jsonl" in note for note in report.values()["notes"])
    assert report.overview().marked
    with locked(path / "run.lock", "training"):
        assert one(path)["status"] == "running"
    diverged = {"kind": "validation", "step": 1, "tokens": 8, "loss": math.nan, "samples": ["a"]}
    (path / "metrics.jsonl").write_text(json.dumps(diverged))
    run = one(path)
    assert run["losses"]["validation"] == []
    assert run["metrics"]["loss"]["value"] is run["samples"][0]["loss"] is None
    (path / "metrics.jsonl").unlink()
    assert one(path)["progress"] == 0


def test_runs_of_another_version_may_lack_anything(tmp_path: Path) -> None:
    versions = {"firth": "0.0.1"}
    for name, job in (("a", {"task": EVIL}), ("b", {"preset": EVIL, "training": {"seed": "5"}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"versions": versions, "job": job}))
    (tmp_path / "a/metrics.jsonl").write_text('5\n{"kind": "step"}\n{"kind": "validation"}\n\n')
    report = firth.report(tmp_path, out=tmp_path / "page.html")
    assert [run["kind"] for run in report.values()["runs"]] == ["fine-tuning", "pre-training"]
    page = (tmp_path / "page.html").read_text()
    assert EVIL not in page
    assert "alert(1)" in page


def test_a_sweep_stands_for_its_runs(runs: Path) -> None:
    (runs / "seeds.json").write_text(
        json.dumps({"runs": [{"name": "lost", "why": "It diverged."}]})
    )
    shutil.copytree(runs / "full", runs / "best")
    shutil.copytree(runs / "full", runs / "best/search/lr=1")  # the best one of a search is a copy
    (runs / "broken").mkdir()
    (runs / "broken/run.json").write_text("{")
    report = firth.report([runs, runs / "lora"])
    assert [record.name for record in report.records] == ["full", "lora", "lr=1"]
    for text in ("diverged", "broken", "twice"):
        assert any(text in note for note in report.notes)


def test_cells_of_a_study_have_its_names(runs: Path) -> None:
    for digest, name in (("0a", "full, seed 1"), ("0b", "same"), ("0c", "same")):
        shutil.copytree(runs / "full", runs / f"cells/{digest}/run")
        (runs / f"cells/{digest}/result.json").write_text(json.dumps({"name": name}))
    names = [record.name for record in firth.report(runs / "cells").records]
    assert names == ["full, seed 1", "0b/run", "0c/run"]


def test_thirty_runs_are_told_apart(runs: Path) -> None:
    for number in range(30):
        path = runs / f"grid/{number}/run"
        shutil.copytree(runs / "full", path)
        change(path, job={"task": "classify", "training": {"seed": number}})
    report = firth.report(runs / "grid", out=runs / "page.html")
    assert [record.name for record in report.records] == [f"{n}/run" for n in range(30)]
    page = (runs / "page.html").read_text()
    [row] = re.findall("<tr><td>seed</td>(.*?)</tr>", page)
    assert row.count("<td>") == 30
    first, rest = report.settings["fine-tuning"].by_value()[0][1].split("; ", 1)
    assert first == "0 (0/run)"
    assert rest.count(";") == 28


# ---- command line -----------------------------------------------------------------------------


def test_the_command(trained: Path, firth_here: Callable[..., Result]) -> None:
    shown = firth_here("report", trained / "base", trained / "lora").stdout
    for fact in ("accuracy", "adapter", "tokenizer", "encoder-tiny", "lora"):
        assert fact in shown
    assert firth_here("report", trained, "--out", "page.html").returncode == 0
    assert firth_here("report", trained, "--out", "page.html").returncode == 2
    values = firth_here("report", trained, "--out", "page.html", "--overwrite", "--json").json
    assert {run["name"] for run in values["runs"]} == {"base", "full", "lora"}


@pytest.mark.nightly
def test_the_page_in_a_browser(
    trained: Path, tmp_path: Path, open_page: Callable[..., Page]
) -> None:
    firth.report(trained, out=tmp_path / "page.html")
    page = open_page(tmp_path / "page.html", width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("section").count() == 6
    page.click("role=tab[name='seconds'] >> nth=0")
    assert page.locator(".chart:visible").count() == 4
