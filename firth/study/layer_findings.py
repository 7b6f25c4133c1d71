"""What the study of layers concludes: which tasks lie in lower layers than others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from firth.study.engine.statistics import Difference, difference, holm, mean_over_seeds
from firth.study.engine.study import Finding, decided
from firth.study.layer_figures import TaskLayers

SYNTAX = ("part of speech", "agreement")
SEMANTICS = ("entities", "entailment", "sentiment", "topic")

LayerResults = Mapping[tuple[str, str], TaskLayers]  # by model and task


def of_model(found: LayerResults, model: str) -> dict[str, TaskLayers]:
    """Return the tasks of one model."""
    return {task: one for (name, task), one in found.items() if name == model}


class Gap(NamedTuple):
    """How many layers lower some tasks lie than others."""

    name: str  # of the finding
    low: str
    high: str
    layers: Difference


def layer_findings(found: LayerResults, reference: str) -> list[Finding]:
    """Compare centres of gravity, by model: of syntax and semantics, and of single tasks."""
    models = list(dict.fromkeys(model for model, _ in found))
    gaps = {
        (model, gap.name): gap
        for model in models
        for gap in _gaps(of_model(found, model), reference)
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


def lexical_notes(found: LayerResults) -> list[str]:
    """Name the tasks that the embedding layer is enough for: their place says little."""
    notes = []
    for model in dict.fromkeys(model for model, _ in found):
        enough = [
            task
            for task, (layers, *_) in of_model(found, model).items()
            if difference(max(layers, key=lambda scores: scores.value), layers[0]).holds is not True
        ]
        if enough:
            notes.append(
                f"In {model} no layer is significantly better than the embedding layer for "
                f"{', '.join(enough)}: words alone may decide these examples, and their centre "
                "of gravity says little."
            )
    return notes
