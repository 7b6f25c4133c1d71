"""Study: does syntax lie in lower layers than semantics?

Linear probes read tags, agreement, entities, entailment and labels from every layer. A task lies
where its centre of gravity is: the mean layer that a probe of all layers reads (Tenney et al.
2019). Control tasks tell what a probe memorizes (Hewitt and Liang 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from firth.data.conll import EXTENSIONS
from firth.study.cells.input_cells import model_path, task_data
from firth.study.cells.probe_cells import STORY_TASKS, layer_features, probed, story_task
from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.statistics import (
    Difference,
    Scores,
    difference,
    holm,
    mean_over_seeds,
)
from firth.study.engine.study import Finding, Study, StudyAnalysis, StudyRun, decided
from firth.study.layer_figures import TaskLayers, layer_figures, layer_rows
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

MODEL = "stories-encoder"
PROBED = ("classify", "pair", "tag")  # tasks of --data
SYNTAX = ("part of speech", "agreement")
SEMANTICS = ("entities", "entailment", "sentiment", "topic")


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


Found = Mapping[tuple[str, str], TaskLayers]  # by model and task


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
        findings=_findings(found, settings.reference),
        figures=[
            figure
            for model in models
            if (own := _of_model(found, model))
            for figure in layer_figures(model, own)
        ],
        notes=[*_notes(run, features), *_lexical(found)],
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


def _of_model(found: Found, model: str) -> dict[str, TaskLayers]:
    return {task: one for (name, task), one in found.items() if name == model}


# ---- findings -----------------------------------------------------------------------------------


class Gap(NamedTuple):
    """How many layers lower some tasks lie than others."""

    name: str  # of the finding
    low: str
    high: str
    layers: Difference


def _findings(found: Found, reference: str) -> list[Finding]:
    """Compare centres of gravity, by model: of syntax and semantics, and of single tasks."""
    models = list(dict.fromkeys(model for model, _ in found))
    gaps = {
        (model, gap.name): gap
        for model in models
        for gap in _gaps(_of_model(found, model), reference)
    }
    if not gaps:
        text = f"There is nothing to compare with {reference}."
        return [Finding(name="layers", text=text, holds=None)]
    corrected = holm({key: gap.layers for key, gap in gaps.items()})
    findings = list[Finding]()
    for (model, name), layers in corrected.items():
        _, low, high, _ = gaps[model, name]
        parts = ("layers", model if model != models[0] else "", name)
        shown = decided(
            "-".join(part for part in parts if part),
            f"{low} lies in lower layers than {high} in {model}",
            layers,
            unit="layers",
            scale=1.0,
        )
        findings.append(shown)
    return findings


def _gaps(own: Mapping[str, TaskLayers], reference: str) -> Iterator[Gap]:
    """Compare syntax with semantics, each task of syntax with it, and each other task with one."""
    seeds = max(len(one.centres) for one in own.values())  # a cell of another seed may have failed
    centres = {task: one.centres for task, one in own.items() if len(one.centres) == seeds}
    syntax, semantics = ([task for task in kind if task in centres] for kind in (SYNTAX, SEMANTICS))
    if len(syntax) > 1 and len(semantics) > 1:
        low, high = (np.mean([centres[t] for t in tasks], axis=0) for tasks in (syntax, semantics))
        names = f"syntax ({_listed(syntax)})", f"semantics ({_listed(semantics)})"
        yield Gap("", *names, mean_over_seeds(high - low))
        for task in syntax:
            yield Gap(_slug(task), task, "semantics", mean_over_seeds(high - centres[task]))
    if reference in centres:
        for task in [task for task in centres if task not in SYNTAX]:
            gap = mean_over_seeds(centres[task] - centres[reference])
            yield Gap(_slug(task), reference, task, gap)


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _listed(names: Sequence[str]) -> str:
    """Join names.

    >>> _listed(["topic", "entities", "entailment"])
    'topic, entities and entailment'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]])


# ---- notes ---------------------------------------------------------------------------------------


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


def _lexical(found: Found) -> list[str]:
    """Name the tasks that the embedding layer is enough for: their place says little."""
    notes = []
    for model in dict.fromkeys(model for model, _ in found):
        enough = [
            task
            for task, (layers, *_) in _of_model(found, model).items()
            if difference(max(layers, key=lambda scores: scores.value), layers[0]).holds is not True
        ]
        if enough:
            notes.append(
                f"In {model} no layer is significantly better than the embedding layer for "
                f"{', '.join(enough)}: words alone decide these examples, so that their centre "
                "of gravity says little."
            )
    return notes


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
