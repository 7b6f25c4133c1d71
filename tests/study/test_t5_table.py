"""The study of T5's table, with made-up runs; a tiny one with real runs at night."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import firth
from firth.models.presets import preset
from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted
from firth.study import t5_table as study
from firth.study.cells.finetuning_cells import example_scores
from firth.study.cells.input_cells import pretraining_text
from firth.study.cells.text_to_text_cells import comparable_batch
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.study.engine.study import StudyInputs
from firth.study.t5_models import LECTURE_SCORES, MODELS
from firth.tasks.readers.examples import Seq2SeqExample
from firth.utils.errors import InputError, UsageError

SOURCES = {"seq2seq-tiny": 0.8, "decoder-tiny": 0.5}  # the accuracy of made-up models


def made_up_model(
    context: CellContext, *, options: Mapping[str, Any], **_: Any
) -> Mapping[str, Any]:
    return {"scores": {}, "options": dict(options)}


def measured(context: CellContext, *, model: Any, **_: Any) -> Mapping[str, Any]:
    counts = {"parameters": 30, "parameters_without_embeddings": 20, "flops": 100.0}
    return {"scores": {"loss": score_values([3.0, 4.0])}, **counts}


def scored(context: CellContext, *, model: Any, **_: Any) -> Mapping[str, Any]:
    """Be right more often with denoising, and with an encoder that shares nothing."""
    options = context.result(model.cell)["options"]
    rate = SOURCES[options["preset"]] - 0.2 * (
        options["objective"] not in ("span-corruption", "prefix-denoising", "causal-denoising")
    )
    rate -= 0.2 * ("model.share_encoder_decoder" in options["overrides"])
    rate -= 0.3 * (options["overrides"]["model.num_layers"] == 1)
    draws = np.random.default_rng(context.seed).random(300) < rate
    return {"scores": {"exact_match": score_values(draws)}}


def failing(context: CellContext, *, model: Any, **settings: Any) -> Mapping[str, Any]:
    if context.result(model.cell)["options"]["objective"] == "causal":
        raise InputError("rows.tsv line 2 is bad.")
    return scored(context, model=model, **settings)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of a run on a small text and a small task, without training."""
    for name, function in (("pretrained", made_up_model), ("measured_model", measured)):
        monkeypatch.setattr(study, name, function)
    text, rows = tmp_path / "text.txt", tmp_path / "rows.tsv"
    text.write_text("\n\n".join(f"The dog saw {i} birds in the tree." for i in range(99)))
    lines = [f"{'good' if i % 2 else 'bad'} book {i}\t{i % 2}" for i in range(60)]
    rows.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    overrides = {"vocab_size": 150}
    return dict(text=text, data=rows, out=tmp_path / "out", workers=1, overrides=overrides)


def test_the_models_are_compared(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "finetuned", scored)
    found = firth.run_study("t5-table", seeds=3, **options)
    by_name = {finding.name: finding for finding in found.analysis.findings}
    assert found.verdict.name == "t5-best"
    assert all(finding.holds for name, finding in by_name.items() if name != "t5-prefix")
    assert by_name["t5-prefix"].holds is None  # both are right at the same examples
    assert "best of the 10 models" in found.verdict.text
    rows = found.values()["rows"]
    both = [row["exact_match"]["value"] for row in (rows[0], rows[5])]  # encoder-decoders
    assert by_name["t5-denoising"].value == pytest.approx(100 * (both[0] - both[1]))
    assert by_name["t5-objective"].value == pytest.approx(20, abs=3)
    assert [(row["architecture"], row["objective"]) for row in rows] == MODELS
    assert rows[0]["lecture"]["GLUE"] == 83.28
    page = (options["out"] / "index.html").read_text()
    assert "83.28" in page
    assert found.verdict.text in page


def test_a_model_that_fails_is_named(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "finetuned", failing)
    found = firth.run_study("t5-table", seeds=5, **options)
    assert len(found.failures) == 5
    (failed,) = (row for row in found.values()["rows"] if "exact_match" not in row)
    assert (failed["architecture"], failed["objective"]) == ("language model", "LM")
    assert failed["error"] == "rows.tsv line 2 is bad."
    assert found.verdict.holds is True


def test_no_test_story_is_pretrained_on() -> None:
    settings = study.T5Settings(tasks=tuple(study.STORY_TASKS))
    run: Any = SimpleNamespace(inputs=StudyInputs(), settings=settings)
    text = pretraining_text(run.inputs, words=settings.words, vocab_size=settings.vocab_size)
    known = text.settings["text"].cell.settings["first_seed"]
    for cell in study._tasks(run).values():
        assert cell.settings["data"].settings["test"].cell.settings["first_seed"] != known


def test_misuse(options: dict[str, Any]) -> None:
    given = {**options, "overrides": {"layers": 3}}
    with pytest.raises(UsageError, match="even"):
        firth.run_study("t5-table", **given)
    given = {**options, "data": None, "overrides": {"tasks": "poems"}}
    with pytest.raises(UsageError, match="poems"):
        firth.run_study("t5-table", **given)


def test_the_numbers_of_the_lecture() -> None:
    """Raffel et al. 2020, table 2."""
    assert LECTURE_SCORES["prefix LM", "denoising"]["GLUE"] == 81.82
    assert LECTURE_SCORES["language model", "LM"]["SQuAD"] == 53.81
    assert LECTURE_SCORES["half the layers", "LM"]["EnRo"] == 26.89


@pytest.mark.parametrize("objective", ["denoising", "LM"])
def test_all_architectures_predict_the_same_targets(objective: str) -> None:
    text = packed("the dog barked . it jump ##s over me", "thank you for your party .", seed=3)
    name = {"denoising": "denoising", "LM": "prefix"}[objective]
    decoder, both = (preset(f"{kind}-tiny").config for kind in ("decoder", "seq2seq"))
    prefix_lm = type(decoder)(**{**vars(decoder), "prefix_lm": True})
    batches = [comparable_batch(text, VOCABULARY, c, objective) for c in (decoder, prefix_lm, both)]
    assert len({predicted(batch, name) for batch in batches}) == 1
    assert not batches[0].prefix.any()
    assert batches[1].prefix.all()
    assert batches[2].target is not None


def test_exact_match_ignores_case_and_white_space() -> None:
    examples = [Seq2SeqExample(source="a", target=target) for target in ("Good", "Bad", "so so")]
    answers = [{"text": text} for text in ("good", "good", "so  so")]
    found = example_scores("seq2seq", examples, answers)
    assert found["exact_match"]["numerators"] == [1.0, 0.0, 1.0]


@pytest.mark.nightly
def test_real_runs(tmp_path: Path) -> None:
    tiny = {"words": 20_000, "tokens": 4000, "steps": 4, "hidden_size": 16, "ffn_size": 16}
    found = firth.run_study(
        "t5-table", seeds=1, out=tmp_path, overrides={**tiny, "test_size": 20, "vocab_size": 400}
    )
    assert not found.failures
    rows = {(row["architecture"], row["objective"]): row for row in found.values()["rows"]}
    assert list(rows) == MODELS
    separate, shared, _, decoder, _ = (row["parameters_without_embeddings"] for row in
                                       list(rows.values())[:5])  # fmt: skip
    assert decoder < shared < separate
