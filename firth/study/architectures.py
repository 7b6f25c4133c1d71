"""Study: which architecture is best for what, at equal tokens, FLOPs and seconds?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firth.study.architecture_inputs import ArchitectureInputs, architecture_inputs
from firth.study.architecture_plans import (
    ENCODER,
    PLANS,
    TABLES,
    TrainingCost,
    equal_budget,
    pretraining_options,
)
from firth.study.architecture_results import BITS, CLOZE, PAIRS, Column, GridScores
from firth.study.architecture_settings import LARGE, MEDIUM, ArchitectureSettings
from firth.study.architecture_tables import analyse
from firth.study.cells.blank_cells import predicted_words
from firth.study.cells.evaluation_cells import bits_per_byte, minimal_pairs
from firth.study.cells.finetuning_cells import finetuned, metric_of
from firth.study.cells.measured_cost_cells import inference_cost, pretraining_cost
from firth.study.cells.pretraining_cells import MODEL, pretrained
from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.statistics import Scores
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.utils.errors import FirthError, UsageError


def run_architectures(run: StudyRun) -> StudyAnalysis:
    """Pre-train all architectures on the same documents, and evaluate each in the same way."""
    names, inputs = _names(run.settings), architecture_inputs(run)
    run.require(inputs.shards, inputs.blanks, *inputs.tasks.values())
    costs = _training_costs(run, names, inputs)
    budgets = _budgets(run.settings, costs)
    models = {
        (name, tokens): _pretrained(run, name, tokens, inputs.shards)
        for (_, name), tokens in budgets.items()
    }
    run.run(cell for cells in models.values() for cell in cells)
    columns = _columns(run, inputs)
    grid = {
        (column.name, *key): _evaluations(run, column, key, cells, inputs)
        for column in columns
        for key, cells in models.items()
        if column.name != BITS or PLANS[key[0]].continues
    }
    results = run.run(cell for cells in grid.values() for cell in cells)
    found = {key: results.scores(cells, _metric(columns, key[0])) for key, cells in grid.items()}
    _note_baseline(run, inputs, {key[1:]: one for key, one in found.items() if key[0] == CLOZE})
    return analyse(
        GridScores(
            columns=columns,
            budgets=budgets,
            scores={key: scores for key, scores in found.items() if scores is not None},
            costs=costs,
            speeds=_speeds(run, models, inputs),
            errors=_first_errors(results, grid),
        )
    )


def _note_baseline(
    run: StudyRun, inputs: ArchitectureInputs, cloze: Mapping[tuple[str, int], Scores | None]
) -> None:
    """Say which architectures predict no more words than the most frequent one would."""
    blanks = run.cells[inputs.blanks].values
    known = {key: scores.value for key, scores in cloze.items() if scores is not None}
    low = dict.fromkeys(name for (name, _), value in known.items() if value <= blanks["baseline"])
    if low:
        run.note(
            f"Always predicting {blanks['most_frequent']!r} fills {blanks['baseline']:.1%} of the "
            f"blanks; no better at some budget: {', '.join(low)}. These runs are too short for "
            "cloze accuracy: set more tokens, or --budget medium."
        )


def _budgets(
    settings: ArchitectureSettings, costs: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, str], int]:
    """Return the tokens of each architecture in each table; the encoder's are the same in all."""
    fields = ("tokens_per_second", "flops_per_token")
    typed = {
        name: TrainingCost(**{field: cost[field] for field in fields})
        for name, cost in costs.items()
    }
    return {
        (table, name): equal_budget(
            table, settings.tokens, cost, typed[ENCODER], settings.batch_tokens
        )
        for table in TABLES
        for name, cost in typed.items()
    }


def _first_errors(
    results: Results, grid: Mapping[tuple[str, str, int], Sequence[Cell]]
) -> dict[tuple[str, int], str]:
    return {key[1:]: error for key, cells in grid.items() if (error := results.first_error(cells))}


def _names(settings: ArchitectureSettings) -> list[str]:
    """Return the architectures; the encoder, which sets the budgets, is the first."""
    for name in settings.architectures:
        if name not in PLANS:
            raise UsageError(f"There is no architecture {name!r}; there are {', '.join(PLANS)}.")
    return [ENCODER, *(name for name in settings.architectures if name != ENCODER)]


def _training_costs(
    run: StudyRun, names: Sequence[str], inputs: ArchitectureInputs
) -> dict[str, Mapping[str, Any]]:
    """Measure the speed and FLOPs of all architectures before the grid."""
    cells = {
        name: Cell(
            pretraining_cost,
            {
                "data": inputs.shards,
                "options": pretraining_options(name, run.settings.size),
                "run_tokens": run.settings.tokens,
            },
            name=f"{name}, cost of training",
            alone=True,
        )
        for name in names
    }
    results = run.run(cells.values())
    if error := results[cells[ENCODER]].error:
        raise FirthError(f"The encoder sets the budgets, but cannot be trained: {error}")
    for name, cell in cells.items():
        if results[cell].error:
            run.note(f"{name} was left out: {results[cell].error}")
    return {name: results[cell].values for name, cell in cells.items() if not results[cell].error}


def _pretrained(run: StudyRun, name: str, tokens: int, data: Cell) -> list[Cell]:
    options = pretraining_options(name, run.settings.size) | {"tokens": tokens}
    return run.with_seeds(
        pretrained, f"{name}, {tokens:,} tokens", data=data, options=options, source=None
    )


def _columns(run: StudyRun, inputs: ArchitectureInputs) -> list[Column]:
    """Return the columns of the tables."""
    columns = [
        Column(name=task, label=_task_label(task), metric=_task_metric(run, task, cell))
        for task, cell in inputs.tasks.items()
    ]
    columns.append(Column(name=CLOZE, label=CLOZE, metric="accuracy"))
    if inputs.pairs is not None:
        columns.append(Column(name=PAIRS, label=PAIRS, metric="accuracy"))
    bits = Column(name=BITS, label=BITS, metric=BITS, unit="bits", scale=1.0, lower_is_better=True)
    return [*columns, bits]


def _task_label(task: str) -> str:
    return {"classify": "classification", "tag": "entities"}.get(task, task)


def _task_metric(run: StudyRun, task: str, data: Cell) -> str:
    return metric_of(task, run.cache.files(data) / "test.jsonl")


def _metric(columns: Iterable[Column], name: str) -> str:
    return next(column.metric for column in columns if column.name == name)


def _evaluations(
    run: StudyRun,
    column: Column,
    key: tuple[str, int],
    models: Sequence[Cell],
    inputs: ArchitectureInputs,
) -> list[Cell]:
    """Return the cells that fill one column for a model of each seed."""
    settings: ArchitectureSettings = run.settings
    texts = {"texts": settings.texts, "max_words": settings.max_words}
    function: Any
    values: dict[str, Any]
    if column.name == BITS:
        function, values = bits_per_byte, {"text": inputs.held_out, **texts}
    elif column.name == CLOZE:
        function, values = predicted_words, {"blanks": inputs.blanks, "sees": PLANS[key[0]].sees}
    elif column.name == PAIRS:
        function, values = minimal_pairs, {"pairs": inputs.pairs, "limit": settings.pairs}
    else:
        function, values = finetuned, _finetuning(settings, column.name, inputs)
    return [
        Cell(
            function,
            {"model": model / MODEL, **values},
            seed=model.seed if function is finetuned else 0,
            name=f"{column.label}, {model.name}",
        )
        for model in models
    ]


def _finetuning(
    settings: ArchitectureSettings, task: str, inputs: ArchitectureInputs
) -> dict[str, Any]:
    options = {
        "batch_size": settings.batch_size,
        "learning_rate": settings.learning_rate,
        "overrides": {"steps": settings.steps},
    }
    data = inputs.tasks[task]
    return {"task": task, "data": data, "labels": settings.labels, "options": options}


def _speeds(
    run: StudyRun, models: Mapping[tuple[str, int], Sequence[Cell]], inputs: ArchitectureInputs
) -> dict[str, Mapping[str, Any]]:
    """Measure the inference of each architecture, which does not depend on its training."""
    settings: ArchitectureSettings = run.settings
    firsts = {name: cells[0] for (name, tokens), cells in models.items() if tokens}
    cells = {
        name: Cell(
            inference_cost,
            {
                "model": cell / MODEL,
                "text": inputs.held_out,
                "texts": 64,
                "max_words": settings.max_words,
                "new_tokens": 32,
                "repeats": 10,
            },
            name=f"{name}, inference",
            alone=True,
        )
        for name, cell in firsts.items()
    }
    results = run.run(cells.values())
    return {name: results[cell].values for name, cell in cells.items() if not results[cell].error}


STUDY = Study(
    name="architectures",
    question=f"Which architecture is best for what, at equal {', '.join(TABLES)}?",
    settings=ArchitectureSettings,
    run=run_architectures,
    takes=("text", "data", "test", "task"),
    medium=MEDIUM,
    large=LARGE,
)
