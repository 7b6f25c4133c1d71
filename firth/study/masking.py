"""Study: how should tokens be masked? Probability, replacement, units, static or dynamic masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from firth.metrics.bootstrap import to_json
from firth.study.cells.finetuning_cells import finetuned
from firth.study.cells.input_cells import prepared_text, pretraining_text, stories, task_data
from firth.study.cells.pretraining_cells import MODEL, ONE_VALIDATION, pretrained
from firth.study.cells.validation_cells import check_validation, validated
from firth.study.engine.cell import Cell
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.masking_findings import (
    SPANS,
    STATIC,
    WORDS,
    Found,
    masking_figures,
    masking_findings,
    percent,
    task_findings,
)
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

REFERENCE_PROB = 0.15
UNITS = {WORDS: "masked-words", SPANS: "masked-spans"}
FIRST_SEED = 500  # of the stories, which differ from those of the common start
EVALUATION = {"mask_prob": REFERENCE_PROB, "keep_prob": 0.0, "random_prob": 0.0}


@dataclass(frozen=True, kw_only=True)
class MaskingSettings:
    """Settings of the study."""

    mask_probs: Annotated[
        tuple[float, ...], Doc("Fractions of masked tokens; 0.15 is the reference.", min=0)
    ] = (0.05, 0.15, 0.3, 0.5, 0.8)
    replacements: Annotated[
        tuple[str, ...],
        Doc("Percentages of selected tokens that become the mask token, a random token, or stay."),
    ] = ("100/0/0", "80/20/0", "80/0/20")
    others: Annotated[
        tuple[str, ...], Doc("Other ways of masking: whole words, spans, static.")
    ] = (
        WORDS,
        SPANS,
        STATIC,
    )
    tokens: Annotated[int, Doc("Tokens of each pre-training run.", min=1)] = 80_000
    words: Annotated[
        int,
        Doc(
            "Words of the stories, unless --text is given; few, so that the runs repeat them.",
            min=1,
        ),
    ] = 15_000
    start_tokens: Annotated[
        int, Doc("Tokens of a common start of all runs; 0: random weights.", min=0)
    ] = 800_000
    start_words: Annotated[int, Doc("Words of the stories of the common start.", min=1)] = 300_000
    start_mask_prob: Annotated[
        str, Doc("Mask probability of the common start, which passes all that are compared.")
    ] = "0.8-0.05"
    hidden_size: Annotated[int, Doc("Hidden size.", min=1)] = 64
    num_layers: Annotated[int, Doc("Number of layers.", min=1)] = 2
    max_length: Annotated[int, Doc("Maximum sequence length in tokens.", min=1)] = 64
    batch_tokens: Annotated[int, Doc("Tokens per optimizer step of pre-training.", min=1)] = 1024
    vocab_size: Annotated[int, Doc("Vocabulary size of the tokenizer.", min=1)] = 500
    documents: Annotated[int, Doc("Documents for validation.", min=1)] = 50
    labels: Annotated[int, Doc("Labelled examples for fine-tuning; 0: no fine-tuning.", min=0)] = (
        100
    )
    test_size: Annotated[int, Doc("Maximum number of test examples.", min=1)] = 300

    def __post_init__(self) -> None:
        if REFERENCE_PROB not in self.mask_probs:
            raise UsageError("mask_probs must have 0.15, with which the others are compared.")
        for text in self.replacements:
            _fractions(text)
        if unknown := set(self.others) - {*UNITS, STATIC}:
            raise UsageError(f"others are of {', '.join((*UNITS, STATIC))}, not {unknown.pop()!r}.")


def _fractions(replacement: str) -> dict[str, float]:
    """Convert percentages of [MASK], random and unchanged tokens to options.

    >>> _fractions("80/20/0")
    {'keep_prob': 0.0, 'random_prob': 0.2}
    """
    parts = replacement.split("/")
    if len(parts) != 3 or not all(part.isdigit() for part in parts) or sum(map(int, parts)) != 100:
        raise UsageError(f"A replacement has three percentages such as 80/10/10, not {parts}.")
    return {"keep_prob": int(parts[2]) / 100, "random_prob": int(parts[1]) / 100}


Variant = tuple[str, Mapping[str, Any]]  # objective, options


def variants(settings: MaskingSettings) -> dict[str, Variant]:
    """Return the ways of masking that are compared, the reference among them."""
    plain = {"mask_prob": REFERENCE_PROB}
    found: dict[str, Variant] = {
        percent(prob): ("masked", {"mask_prob": prob}) for prob in settings.mask_probs
    }
    for text in settings.replacements:
        found[text] = ("masked", {**plain, **_fractions(text)})
    for name in settings.others:
        found[name] = (
            ("masked", {**plain, "static": True}) if name == STATIC else (UNITS[name], plain)
        )
    return found


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
