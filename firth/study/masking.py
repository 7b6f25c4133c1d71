"""Study: how should tokens be masked? Probability, replacement, units, static or dynamic masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firth.metrics.bootstrap import to_json
from firth.study.cells.finetuning_cells import finetuned
from firth.study.cells.input_cells import prepared_text, pretraining_text, stories, task_data
from firth.study.cells.pretraining_cells import MODEL, ONE_VALIDATION, pretrained
from firth.study.cells.validation_cells import check_validation, validated
from firth.study.engine.cell import Cell
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.masking_findings import (
    STATIC,
    Found,
    masking_figures,
    masking_findings,
    task_findings,
)
from firth.study.masking_settings import (
    REFERENCE_PROB,
    UNITS,
    MaskingSettings,
    Variant,
    variants,
)

FIRST_SEED = 500  # of the stories, which differ from those of the common start
EVALUATION = {"mask_prob": REFERENCE_PROB, "keep_prob": 0.0, "random_prob": 0.0}


def run_masking(run: StudyRun) -> StudyAnalysis:
    """Pre-train with each way of masking, and evaluate all on the same masked tokens."""
    settings: MaskingSettings = run.settings
    first = pretraining_text(run.inputs, words=settings.start_words, vocab_size=settings.vocab_size)
    text = first if run.inputs.text is not None else _few_stories(settings, first)
    splits = run.require(first, text)[1]["splits"]
    check_validation(splits)
    _note_epochs(run, splits["train"]["tokens"])
    _note_units(run)
    start = _start(run, first)
    trained = {
        name: _pretrained(run, name, text, variant, start)
        for name, variant in variants(settings).items()
    }
    grid = {
        name: [_validated(run, cell, text) for cell in cells] for name, cells in trained.items()
    }
    tuned = {name: _finetuned(run, cells) for name, cells in trained.items()}
    results = run.run(cell for group in (grid, tuned) for cells in group.values() for cell in cells)
    found = {
        metric: {
            name: scores
            for name, cells in group.items()
            if cells and (scores := results.scores(cells, score)) is not None
        }
        for metric, group, score in (
            ("loss", grid, "loss"),
            ("accuracy", grid, "accuracy"),
            ("fine-tuned accuracy", tuned, "accuracy"),
        )
    }
    errors = {name: results.first_error(cells) for name, cells in grid.items()}
    return StudyAnalysis(
        rows=_rows(found, errors),
        findings=[
            *masking_findings(found["loss"], settings.mask_probs),
            *task_findings(found["fine-tuned accuracy"]),
        ],
        figures=masking_figures(found, settings.mask_probs),
    )


def _few_stories(settings: MaskingSettings, first: Cell) -> Cell:
    """Return the cell with a small text, in the tokens of the common start."""
    folder = stories(settings.words, FIRST_SEED)
    values = {
        "text": folder / "train.txt",
        "valid": stories(settings.start_words) / "dev.txt",
        "tokenizer": first / "tokenizer",
        "vocab_size": settings.vocab_size,
    }
    return Cell(prepared_text, values, name="shards of few stories")


def _note_epochs(run: StudyRun, available: int) -> None:
    epochs = run.settings.tokens / available
    run.note(f"Each run reads a text of {available:,} tokens {epochs:.1f} times.")
    if epochs < 2 and STATIC in run.settings.others:
        run.note("Static and dynamic masks differ only from the second epoch on.")


def _note_units(run: StudyRun) -> None:
    if units := [name for name in run.settings.others if name in UNITS]:
        run.note(
            f"Single tokens are masked in the evaluation, for which {' and '.join(units)} do not "
            "prepare a model: there, the other tokens of a word are masked too. Fine-tuning "
            "(labels=200) compares them without masks."
        )


def _options(settings: MaskingSettings, objective: str, tokens: int) -> dict[str, Any]:
    sizes = {
        "num_layers": settings.num_layers,
        "hidden_size": settings.hidden_size,
        "num_heads": max(2, settings.hidden_size // 64),
        "ffn_size": 3 * settings.hidden_size,
        "max_positions": settings.max_length,
    }
    overrides = {f"model.{name}": value for name, value in sizes.items()}
    return {
        "preset": "encoder-tiny",
        "objective": objective,
        "tokens": tokens,
        "max_length": settings.max_length,
        "batch_tokens": settings.batch_tokens,
        "overrides": {**ONE_VALIDATION, **overrides},
    }


def _start(run: StudyRun, text: Cell) -> Cell | None:
    """Return the cell whose model all runs continue from."""
    settings: MaskingSettings = run.settings
    if not settings.start_tokens:
        return None
    options = _options(settings, "masked", settings.start_tokens)
    options["mask_prob"] = settings.start_mask_prob
    run.note(
        f"All runs continue from one encoder, pre-trained for {settings.start_tokens:,} tokens "
        f"while its mask probability went from {settings.start_mask_prob.replace('-', ' to ')}; "
        "with so few tokens, random weights would hardly learn. start_tokens=0 begins with those."
    )
    return Cell(pretrained, {"data": text, "options": options}, name="common start")


def _pretrained(
    run: StudyRun, name: str, text: Cell, variant: Variant, start: Cell | None
) -> list[Cell]:
    objective, given = variant
    options = _options(run.settings, objective, run.settings.tokens)
    options["overrides"] |= {f"objective.{key}": value for key, value in given.items()}
    source = None if start is None else start / MODEL
    return run.with_seeds(pretrained, name, data=text, options=options, source=source)


def _validated(run: StudyRun, cell: Cell, text: Cell) -> Cell:
    """Return the cell that evaluates a model: 15 % of the tokens masked, the same for all."""
    values = {
        "model": cell / MODEL,
        "data": text,
        "objective": "masked",
        "max_length": run.settings.max_length,
        "documents": run.settings.documents,
        "options": EVALUATION,
    }
    return Cell(validated, values, seed=cell.seed, name=cell.name)


def _finetuned(run: StudyRun, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that fine-tune the models on the stories' sentiment."""
    settings: MaskingSettings = run.settings
    if not settings.labels:
        return []
    values = {
        "task": "classify",
        "data": task_data(run.inputs, test_size=settings.test_size),
        "labels": settings.labels,
        "options": {"overrides": {"steps": 100}, "batch_size": 16},
    }
    return [
        Cell(finetuned, {"model": cell / MODEL, **values}, seed=cell.seed, name=cell.name)
        for cell in cells
    ]


def _rows(found: Found, errors: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "masking": name,
            **{
                metric: to_json(scores[name].metric())
                for metric, scores in found.items()
                if name in scores
            },
            "error": error,
        }
        for name, error in errors.items()
    ]


STUDY = Study(
    name="masking",
    question="How should tokens be masked: how many, replaced by what, which ones?",
    settings=MaskingSettings,
    run=run_masking,
    takes=("text",),
    medium={
        "tokens": 1_500_000,
        "words": 150_000,
        "start_tokens": 0,
        "vocab_size": 2000,
        "labels": 200,
    },
    large={
        "tokens": 100_000_000,
        "words": 10_000_000,
        "start_tokens": 0,
        "start_words": 1_000_000,
        "hidden_size": 256,
        "num_layers": 6,
        "max_length": 128,
        "batch_tokens": 16_384,
        "vocab_size": 8000,
        "documents": 1000,
        "labels": 1000,
        "test_size": 1000,
    },
)
