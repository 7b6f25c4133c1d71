"""Evaluation suites (GLUE, language modelling, BLiMP) and their averages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import finetune
from firth.jobs.suites import evaluate_suite
from firth.utils.errors import InputError, UsageError
from tests.conftest import Result
from tests.jobs.finetuning.toys import TINY, coloured, table

Firth = Callable[..., Result]
Runs = tuple[Path, Path]


@pytest.fixture(scope="module")
def glue(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of three tasks of GLUE and their data, with common spellings of their names."""
    runs, data = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("data")
    same = [("the dog", "the dog", 1), ("the dog", "a river", 0), ("a school", "a school", 1)] * 6
    near = [("the dog", "the dog", 5.0), ("the dog", "a river", 1.5), ("a fox", "fox", 3.5)] * 6
    makers: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
        "SST-2": ("classify", "sst2", lambda path: coloured(path.parent)[1].rename(path)),
        "mrpc": ("pair", "mrpc", lambda path: table(path, "text_a text_b label", same)),
        "sts_b": ("regress", "STSB", lambda path: table(path, "text_a text_b label", near)),
    }
    for folder, (task, run, make) in makers.items():
        (data / folder).mkdir()
        dev = data / folder / "dev.tsv"
        make(dev)
        overrides = TINY | {"steps": 2}
        finetune(
            models["encoder"], task=task, train=dev, dev=dev, out=runs / run, overrides=overrides
        )
    (data / "conll2003").mkdir()
    return runs, data


def test_glue(glue: Runs) -> None:
    runs, data = glue
    found = evaluate_suite(runs, "glue", data=data)
    assert [row.name for row in found.rows] == ["sst2", "mrpc", "stsb"]
    alone = evaluate(runs / "mrpc", data=data / "mrpc" / "dev.tsv").metrics
    scores = {row.name: row.score.value for row in found.rows}
    assert scores["mrpc"] == pytest.approx((alone["f1"].value + alone["accuracy"].value) / 2)
    alone = evaluate(runs / "STSB", data=data / "sts_b" / "dev.tsv").metrics
    assert scores["stsb"] == pytest.approx((alone["pearson"].value + alone["spearman"].value) / 2)
    assert found.averages["score"].value == pytest.approx(sum(scores.values()) / 3)
    assert found.averaged == ["sst2", "mrpc", "stsb"]
    assert found.missing == ["cola", "qqp", "mnli", "qnli", "rte", "wnli"]
    assert "cola, qqp, mnli, qnli, rte" in found.notes[-1]
    assert found.rows[1].measure == "mean of f1 and accuracy"


def test_skipped_tasks_are_noted(glue: Runs, tmp_path: Path) -> None:
    runs, data = glue
    (tmp_path / "runs" / "cola").mkdir(parents=True)
    (tmp_path / "runs" / "sst2").symlink_to(runs / "sst2")
    (tmp_path / "data" / "rte").mkdir(parents=True)
    (tmp_path / "data" / "cola").mkdir()
    (tmp_path / "data" / "cola" / "dev.tsv").write_text("text\tlabel\nIt is.\t1\n")
    (tmp_path / "data" / "sst2").symlink_to(data / "SST-2")
    found = evaluate_suite(tmp_path / "runs", "glue", data=tmp_path / "data")
    assert [row.name for row in found.rows] == ["sst2"]
    assert found.notes[0].startswith("cola is skipped: ")
    assert found.notes[1].startswith("rte is skipped: ")


def test_lm(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "wikitext-test.txt").write_text(" = The dog = \n\n The dog ran . \n")
    (tmp_path / "notes.txt").write_text("The river rose.\n\nThe dog ran home.\n")
    (tmp_path / "lambada.txt").write_text("The river rose\nThe dog ran home\n")
    (tmp_path / "README").write_text("?")
    found = evaluate_suite(models["decoder"], "lm", data=tmp_path)
    assert [row.name for row in found.rows] == ["lambada.txt", "notes.txt", "wikitext-test.txt"]
    said = ["last-word: accuracy", "lm: token_perplexity", "wikitext: word_perplexity"]
    assert [row.measure for row in found.rows] == said
    each = [row.metrics["bits_per_byte"].value for row in found.rows[1:]]
    assert found.averages["bits_per_byte"].value == pytest.approx(sum(each) / 2)
    assert found.averaged == ["notes.txt", "wikitext-test.txt"]
    assert any(note.startswith("1 files") for note in found.notes)
    (tmp_path / "lambada.txt").unlink()
    masked = evaluate_suite(models["encoder"], "lm", data=tmp_path)
    assert list(masked.averages) == ["pseudo_perplexity"]


def test_blimp_is_the_plain_mean_of_its_sets(
    models: dict[str, Path], tmp_path: Path, firth_here: Firth
) -> None:
    pairs = {
        "a": [("The dogs run.", "The dogs runs."), ("The dog ran.", "The dog ran.")],
        "b": [("She saw him.", "She saw he.")] * 3 + [("It rose.", "It rise.")],
    }
    folder = tmp_path / "blimp"
    folder.mkdir()
    for name, rows in pairs.items():
        lines = [
            json.dumps({"sentence_good": g, "sentence_bad": b, "UID": name, "field": "syntax"})
            for g, b in rows
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    done = firth_here("evaluate", models["decoder"], "--suite", "blimp", "--data", folder, "--json")
    assert done.returncode == 0, done.stderr
    found = done.json
    assert [(row["name"], row["n"]) for row in found["rows"]] == [("a", 2), ("b", 4)]
    each = [row["score"] for row in found["rows"]]
    assert found["averages"]["accuracy"]["value"] == pytest.approx(
        sum(score["value"] for score in each) / 2
    )
    whole = evaluate(models["decoder"], task="minimal-pairs", data=folder)
    weighted = (2 * each[0]["value"] + 4 * each[1]["value"]) / 6
    assert whole.metrics["accuracy"].value == pytest.approx(weighted)
    assert all(score["error"] >= 0 for score in each)
    assert set(found["groups"]["field"]) == {"syntax"}
    shown = firth_here("evaluate", models["decoder"], "--suite", "blimp", "--data", folder).stdout
    assert "The average accuracy is " in shown
    assert "unweighted over a, b." in " ".join(shown.split())


def test_invalid_suites(
    models: dict[str, Path], tmp_path: Path, firth_here: Firth, glue: Runs
) -> None:
    with pytest.raises(UsageError, match="There is no suite 'super'; there are glue, lm, blimp"):
        evaluate_suite(models["encoder"], "super", data=tmp_path)
    with pytest.raises(InputError, match="is not a folder; --suite blimp"):
        evaluate_suite(models["encoder"], "blimp", data=tmp_path / "nothing")
    with pytest.raises(InputError, match=r"GLUE.*: cola, sst2"):
        evaluate_suite(models["encoder"], "glue", data=tmp_path)
    with pytest.raises(UsageError, match="takes a folder with a run for each task"):
        evaluate_suite("org/name", "glue", data=tmp_path)
    with pytest.raises(UsageError, match="--by-word is for minimal pairs"):
        evaluate_suite(models["encoder"], "lm", data=tmp_path, by_word=True)
    words = ("evaluate", models["decoder"], "--suite", "lm", "--data", tmp_path)
    done = firth_here(*words, "--convention", "ptb")
    assert done.returncode == 2
    assert "--convention" in done.stderr


def test_evaluate_on_the_command_line(
    models: dict[str, Path], tmp_path: Path, firth_here: Firth
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The river rose.\n\nThe dog ran home.\n")
    words = ("evaluate", models["decoder"], "--task", "lm", "--data", text)
    found = json.loads(firth_here(*words, "--convention", "wikitext", "--json").stdout)
    assert found["task"] == "lm"
    assert found["n"] == 3
    names = ["word_perplexity", "token_perplexity", "bits_per_character", "bits_per_byte"]
    assert list(found["metrics"]) == names
    for metric in found["metrics"].values():  # one window: no interval
        assert (metric["low"], metric["high"], bool(metric["reason"])) == (None, None, True)
    shown = " ".join(firth_here(*words, "--convention", "wikitext").stdout.split())
    assert f"not available ({metric['reason']})" in shown
    assert math.isfinite(found["metrics"]["word_perplexity"]["value"])
    shown = " ".join(firth_here(*words).stdout.split())
    assert "Convention plain: " in shown
    assert "2 documents in " in shown
    done = firth_here("evaluate", models["encoder"], "--task", "lm", "--data", text)
    assert "pseudo_perplexity" in done.stdout
