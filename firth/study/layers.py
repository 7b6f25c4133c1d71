"""Study: does syntax lie in lower layers than semantics?

Linear probes read tags, agreement, entities, entailment and labels from every layer. A task lies
where its centre of gravity is: the mean layer that a probe of all layers reads (Tenney et al.
2019). Control tasks tell what a probe memorizes (Hewitt and Liang 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from firth.data.conll import EXTENSIONS
from firth.study.cells.input_cells import model_path, task_data
from firth.study.cells.probe_cells import STORY_TASKS, layer_features, probed, story_task
from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.statistics import Scores
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.layer_figures import TaskLayers, layer_figures, layer_rows
from firth.study.layer_findings import layer_findings, lexical_notes, of_model
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

MODEL = "stories-encoder"
PROBED = ("classify", "pair", "tag")  # tasks of --data


@dataclass(frozen=True, kw_only=True)
class LayerSettings:
    """Settings of the study."""

    tasks: Annotated[tuple[str, ...], Doc("Tasks of the stories, without --data.")] = tuple(
        STORY_TASKS
    )
    reference: Annotated[str, Doc("Task of the stories that is compared with the others.")] = (
        "part of speech"
    )
    words: Annotated[int, Doc("Words of the stories.", min=1)] = 1_000_000
    train_size: Annotated[int, Doc("Most words, texts or pairs to train a probe on.", min=1)] = 800
    test_size: Annotated[int, Doc("Words, texts or pairs that a probe is tested on.", min=1)] = 500
    strength: Annotated[float, Doc("Inverse L2 penalty of all probes.", min=1e-6)] = 0.1


def run_layers(run: StudyRun) -> StudyAnalysis:
    """Probe every layer of one or several models for each task."""
    settings: LayerSettings = run.settings
    models = _models(run.inputs.models or (MODEL,))
    features = {
        (model, task): Cell(
            layer_features,
            {
                "model": model_path(source),
                "task": kind,
                "data": data,
                "train_size": settings.train_size,
                "parts": len(run.seeds),
                "test_size": settings.test_size,
            },
            name=f"vectors: {model}, {task}",
        )
        for model, source in models.items()
        for task, (kind, data) in _tasks(run).items()
    }
    run.run(features.values())
    grid = {key: _probes(run, cell, *key) for key, cell in features.items()}
    results = run.run(cell for cells in grid.values() for cell in cells)
    found = {
        key: _layers(results, cells)
        for key, cells in grid.items()
        if not all(results[cell].error for cell in cells)
    }
    return StudyAnalysis(
        rows=[
            row
            for key, cells in grid.items()
            for row in layer_rows(*key, found.get(key), results.first_error(cells))
        ],
        findings=layer_findings(found, settings.reference),
        figures=[
            figure
            for model in models
            if (own := of_model(found, model))
            for figure in layer_figures(model, own)
        ],
        notes=[*_notes(run, features), *lexical_notes(found)],
    )


def _models(sources: Sequence[str]) -> dict[str, str]:
    """Return the models by short names, or by full ones if these are the same."""
    found = {_short(source): source for source in sources}
    return found if len(found) == len(sources) else {source: source for source in sources}


def _tasks(run: StudyRun) -> dict[str, tuple[str, Cell]]:
    """Return the kind and the examples of each task, by name; the first is the reference."""
    settings: LayerSettings = run.settings
    for name in (settings.reference, *settings.tasks):
        if name not in STORY_TASKS:
            raise UsageError(f"There is no task {name!r}; there are {', '.join(STORY_TASKS)}.")
    data = run.inputs.data
    names = dict.fromkeys((settings.reference, *(() if data else settings.tasks)))
    found = {name: (STORY_TASKS[name].task, story_task(name, settings.words)) for name in names}
    if data is None:
        return found
    kind = run.inputs.task or ("tag" if _is_conll(data) else "classify")
    if kind not in PROBED:
        raise UsageError(f"Probes are for the tasks {', '.join(PROBED)}, not {kind}.")
    size = max(1000, settings.test_size)
    return {**found, _short(data): (kind, task_data(run.inputs, test_size=size, task=kind))}


def _short(path: str | Path) -> str:
    """Return the last parts of a path.

    >>> _short("/data/conll2003/train.conll"), _short("stories-encoder")
    ('conll2003/train.conll', 'stories-encoder')
    """
    return "/".join(Path(path).parts[-2:])


def _is_conll(path: Path) -> bool:
    return any(suffix.removeprefix(".") in EXTENSIONS for suffix in path.suffixes)


def _probes(run: StudyRun, features: Cell, model: str, task: str) -> list[Cell]:
    settings: LayerSettings = run.settings
    shared = {
        "features": features,
        "train_size": settings.train_size,
        "parts": len(run.seeds),
        "strength": settings.strength,
    }
    return [
        Cell(probed, {**shared, "part": part}, seed=seed, name=f"{model}, {task}, seed {seed}")
        for part, seed in enumerate(run.seeds)
    ]


def _layers(results: Results, cells: Sequence[Cell]) -> TaskLayers:
    values = results.values_of(cells)
    weights = np.array([one["weights"] for one in values])

    def scores(name: str) -> list[Scores]:
        return [
            Scores.of([one["scores"][f"{name} {layer}"] for one in values])
            for layer in range(weights.shape[1])
        ]

    centres = np.array([one["centre_of_gravity"] for one in values])
    return TaskLayers(scores("layer"), scores("control"), weights, centres)


def _notes(run: StudyRun, features: Mapping[tuple[str, str], Cell]) -> list[str]:
    """Say how words, texts and pairs are represented, and how many examples there are."""
    sizes = {task: run.cells[cell].values for (_, task), cell in features.items()}
    counts = (
        f"{task}: {min(run.settings.train_size, one['train'] // len(run.seeds)):,} training and "
        f"{one['test']:,} test examples"
        for task, one in sizes.items()
        if one
    )
    return [
        "A word is the mean of its tokens' hidden states, a text the mean of all its tokens, and a "
        "pair u, v, |u − v| and u · v of its texts. Of the words of entity files, at most half are "
        "in no entity.",
        f"{'; '.join(counts)}. Each seed has its own control labels, and training "
        "examples that no other seed has.",
    ]


STUDY = Study(
    name="layers",
    question="Does syntax lie in lower layers than semantics?",
    settings=LayerSettings,
    run=run_layers,
    takes=("data", "test", "task", "models"),
    several_models=True,
    medium={"words": 4_000_000, "train_size": 3000, "test_size": 1000},
    large={"words": 6_000_000, "train_size": 5000, "test_size": 2000},
)
