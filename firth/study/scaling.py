"""Study: does the loss fall as a power law of model size and data, and does the law predict?

N  parameters without embeddings     D  tokens     C = 6 N D  training FLOPs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from firth.metrics.bootstrap import Metric, to_json
from firth.study.cells.input_cells import pretraining_text
from firth.study.cells.pretraining_cells import MODEL, ONE_VALIDATION, pretrained
from firth.study.cells.validation_cells import check_validation, validated
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.grid import Results
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.scaling_figures import scaling_figures
from firth.study.scaling_findings import ScalingPoint, scaling_findings
from firth.study.scaling_law import MIN_VALUES, LawFit, fit_law
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

PRESETS = {"causal": "decoder-tiny", "masked": "encoder-tiny"}
GATED_RATIO = 3  # ffn_size / hidden_size: the blocks' feed-forward layers are gated


@dataclass(frozen=True, kw_only=True)
class ScalingSettings:
    """Settings of the study."""

    objective: Annotated[str, Doc("causal or masked.")] = "causal"
    hidden_sizes: Annotated[
        tuple[int, ...], Doc("Hidden sizes of the runs that the law is fitted to.", min=1)
    ] = (16, 24, 32, 48)
    tokens: Annotated[
        tuple[int, ...], Doc("Tokens of the runs that the law is fitted to.", min=1)
    ] = (
        30_000,
        60_000,
        120_000,
    )
    largest_hidden_size: Annotated[
        int, Doc("Hidden size of the run that is predicted before it is run.", min=1)
    ] = 64
    largest_tokens: Annotated[int, Doc("Tokens of that run.", min=1)] = 240_000
    num_layers: Annotated[int, Doc("Number of layers.", min=1)] = 2
    max_length: Annotated[int, Doc("Maximum sequence length in tokens.", min=1)] = 64
    batch_tokens: Annotated[int, Doc("Tokens per optimizer step of pre-training.", min=1)] = 512
    vocab_size: Annotated[int, Doc("Vocabulary size of the tokenizer.", min=1)] = 500
    words: Annotated[int, Doc("Words of the stories, unless --text is given.", min=1)] = 300_000
    documents: Annotated[int, Doc("Documents for validation.", min=1)] = 50

    def __post_init__(self) -> None:
        if self.objective not in PRESETS:
            raise UsageError(f"objective is {' or '.join(PRESETS)}, not {self.objective!r}.")
        for name in ("hidden_sizes", "tokens"):
            if len(set(getattr(self, name))) < MIN_VALUES:
                raise UsageError(f"{name} needs at least {MIN_VALUES} values to fit an exponent.")
        if self.largest_hidden_size <= max(self.hidden_sizes):
            raise UsageError("largest_hidden_size must be above all hidden_sizes.")

    def parameters(self, hidden_size: int) -> int:
        """Count the weights of the layers' matrices: attention 4 W², gated feed-forward 9 W²."""
        return self.num_layers * (4 + 3 * GATED_RATIO) * hidden_size**2


def run_scaling(run: StudyRun) -> StudyAnalysis:
    """Fit a law to small runs, predict the largest, and then run that."""
    settings: ScalingSettings = run.settings
    text = pretraining_text(run.inputs, words=settings.words, vocab_size=settings.vocab_size)
    splits = run.require(text)[0]["splits"]
    check_validation(splits)
    _note_repetition(run, splits["train"]["tokens"])
    grid = {
        (hidden, tokens): _cells(run, text, hidden, tokens)
        for hidden in settings.hidden_sizes
        for tokens in settings.tokens
    }
    small = [cell for cells in grid.values() for cell in cells]
    results = run.run(small)
    points = _points(settings, grid, results)
    fit, predicted = _predict(run, points)  # stored before the largest run begins
    key = settings.largest_hidden_size, settings.largest_tokens
    cells = {key: _cells(run, text, *key)}
    largest = _points(settings, cells, run.run([*small, *cells[key]]))
    return StudyAnalysis(
        rows=_rows(points, fit) + _rows(largest, fit, predicted),
        findings=scaling_findings(points, fit, predicted, largest),
        figures=scaling_figures(points, fit, predicted, largest),
    )


def _cells(run: StudyRun, text: Cell, hidden_size: int, tokens: int) -> list[Cell]:
    """Return the cells that pre-train and validate a model with each seed."""
    settings: ScalingSettings = run.settings
    sizes = {
        "num_layers": settings.num_layers,
        "hidden_size": hidden_size,
        "num_heads": max(2, hidden_size // 64),
        "ffn_size": GATED_RATIO * hidden_size,
        "max_positions": settings.max_length,
    }
    options = {
        "preset": PRESETS[settings.objective],
        "objective": settings.objective,
        "tokens": tokens,
        "max_length": settings.max_length,
        "batch_tokens": settings.batch_tokens,
        "overrides": {
            **ONE_VALIDATION,
            **{f"model.{name}": value for name, value in sizes.items()},
        },
    }
    name = f"{settings.parameters(hidden_size):,} parameters, {tokens:,} tokens"
    common = {
        "data": text,
        "objective": settings.objective,
        "max_length": settings.max_length,
        "documents": settings.documents,
        "options": {},
    }
    trained = run.with_seeds(pretrained, name, data=text, options=options)
    return [
        Cell(validated, {"model": cell / MODEL, **common}, seed=cell.seed, name=cell.name)
        for cell in trained
    ]


def _note_repetition(run: StudyRun, available: int) -> None:
    settings: ScalingSettings = run.settings
    wanted = (*settings.tokens, settings.largest_tokens)
    if repeated := [tokens for tokens in wanted if tokens > available]:
        counts = ", ".join(f"{tokens:,} ({tokens / available:.1f} epochs)" for tokens in repeated)
        run.note(
            f"The text has {available:,} tokens, and these runs read parts of it more than once: "
            f"{counts}. Repeated tokens help less than new ones (Muennighoff et al. 2023), which "
            "the law does not know."
        )


Grid = Mapping[tuple[int, int], Sequence[Cell]]


def _points(settings: ScalingSettings, grid: Grid, results: Results) -> list[ScalingPoint]:
    """Return the runs that did not fail."""
    found = {key: results.scores(cells, "loss") for key, cells in grid.items()}
    return [
        ScalingPoint(settings.parameters(hidden), tokens, hidden, scores)
        for (hidden, tokens), scores in found.items()
        if scores is not None
    ]


def predicted_loss(
    context: CellContext,
    *,
    runs: Sequence[Mapping[str, Any]],
    parameters: int,
    tokens: int,
) -> Mapping[str, Any]:
    """Fit the law to runs, and predict the loss of a larger one."""
    sizes, amounts = (np.array([run[k] for run in runs], float) for k in ("parameters", "tokens"))
    fit = fit_law(sizes, amounts, [np.array(run["losses"]) for run in runs])
    return {"fit": fit.values(), "predicted": to_json(fit.predict(parameters, tokens))}


def _predict(run: StudyRun, points: Sequence[ScalingPoint]) -> tuple[LawFit, Metric]:
    """Fit and predict in a cell, so that the prediction is stored."""
    settings: ScalingSettings = run.settings
    runs = [
        {
            "parameters": point.parameters,
            "tokens": point.tokens,
            "losses": point.scores.by_seed.tolist(),
        }
        for point in points
    ]
    size, tokens = settings.parameters(settings.largest_hidden_size), settings.largest_tokens
    values = {"runs": runs, "parameters": size, "tokens": tokens}
    cell = Cell(predicted_loss, values, name="prediction of the largest run")
    (found,) = run.require(cell)
    return LawFit.from_values(found["fit"]), Metric(**found["predicted"])


def _rows(
    points: Sequence[ScalingPoint], fit: LawFit, predicted: Metric | None = None
) -> list[dict[str, Any]]:
    return [
        {
            "parameters": point.parameters,
            "hidden_size": point.hidden_size,
            "tokens": point.tokens,
            "flops": point.flops,
            "loss": to_json(point.scores.metric()),
            "by_seed": point.scores.by_seed.tolist(),
            "fitted": float(fit.law.loss(point.parameters, point.tokens)),
            "predicted": None if predicted is None else to_json(predicted),
        }
        for point in points
    ]


STUDY = Study(
    name="scaling",
    question="Does the loss fall as a power law of model size and data, and does the law predict a "
    "larger run?",
    settings=ScalingSettings,
    run=run_scaling,
    takes=("text",),
    medium={
        "hidden_sizes": (32, 48, 64, 96),
        "tokens": (200_000, 400_000, 800_000, 1_600_000),
        "largest_hidden_size": 128,
        "largest_tokens": 3_200_000,
        "vocab_size": 2000,
        "words": 3_000_000,
    },
    large={
        "hidden_sizes": (64, 128, 192, 256, 384),
        "tokens": (8_000_000, 16_000_000, 32_000_000, 64_000_000),
        "largest_hidden_size": 512,
        "largest_tokens": 128_000_000,
        "num_layers": 6,
        "max_length": 128,
        "batch_tokens": 16_384,
        "vocab_size": 8000,
        "words": 100_000_000,
        "documents": 2000,
    },
)
