"""Evaluation suites: GLUE, BLiMP and a folder of language modelling datasets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from firth.data.input_files import InputFile, find_sources
from firth.data.readers import ReadOptions
from firth.jobs.evaluation import EvaluationResult, evaluate
from firth.metrics.bootstrap import Metric, to_json
from firth.metrics.language_modelling import NO_MEAN_INTERVAL, mean_metric
from firth.model import Model, load_if_needed
from firth.tasks.ensembles import Progress
from firth.tasks.scoring_task import Parts
from firth.training.model_card import selection_note
from firth.utils.config_fields import flag
from firth.utils.devices import Device
from firth.utils.errors import FirthError, InputError, UsageError
from firth.utils.notebook import show_progress

# GLUE (Wang et al. 2019): the metrics whose mean is a task's score.
GLUE: dict[str, tuple[str, ...]] = {
    "cola": ("matthews",),
    "sst2": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "stsb": ("pearson", "spearman"),
    "qqp": ("f1", "accuracy"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
}
UNCOUNTED = ("wnli",)  # as in BERT's paper: its dev set is adversarial
DEV = re.compile(r"(dev|valid)")
# File name pattern -> task and convention; the first match counts.
KINDS = (
    (re.compile("lambada"), "last-word", ""),
    (re.compile(r"wikitext|wiki\.(test|valid|train)"), "lm", "wikitext"),
    (re.compile(r"ptb|penn"), "lm", "ptb"),
    (re.compile("enwik8|text8"), "lm", "enwik8"),
    (re.compile(""), "lm", ""),
)
PSEUDO = "pseudo_perplexity"


@dataclass(frozen=True, kw_only=True)
class SuiteRow:
    """One row of a suite's results."""

    name: str
    measure: str  # name of the metric
    score: Metric
    n: int
    metrics: Mapping[str, Metric]  # all metrics of the dataset
    selected_on: list[str] = field(default_factory=list)  # what some of the examples selected


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """The results of a suite and their averages."""

    suite: str
    rows: list[SuiteRow]
    averages: dict[str, Metric]  # the one that papers report first
    averaged: list[str]  # rows that are part of the average
    seconds: float = 0.0
    missing: list[str] = field(default_factory=list)
    groups: dict[str, Parts] = field(default_factory=dict)  # of minimal pairs, by larger categories
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return to_json(self)


def evaluate_suite(
    model: str | Path | Model,
    name: str,
    *,
    data: str | Path,
    limit: int = 0,
    by_word: bool = False,
    temperature: float | None = None,
    device: Device = None,
    progress: Progress = show_progress,
) -> SuiteResult:
    """Measure a model on everything in a folder: `glue`, `lm` or `blimp`.

    For `glue`, the model is a folder with a run for each task (`runs/sst2`, `runs/cola`, …), and
    the data a folder with a folder for each (`data/sst2/dev.tsv`, …).
    """
    if name not in SUITES:
        raise UsageError(f"There is no suite {name!r}; there are {', '.join(SUITES)}.")
    scoring = {"by_word": by_word, "temperature": temperature}
    if name != "blimp" and (given := [option for option, value in scoring.items() if value]):
        raise UsageError(f"{flag(given[0])} is for minimal pairs: --suite blimp.")
    folder = Path(data)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; --suite {name} evaluates all files in one.")
    begun = time.monotonic()
    options = {"limit": limit, "device": device, "progress": progress, **scoring}
    found = SUITES[name](model, folder, options)
    return replace(found, seconds=time.monotonic() - begun)


# ---- GLUE ---------------------------------------------------------------------------------------


def _glue(model: str | Path | Model, data: Path, options: dict[str, Any]) -> SuiteResult:
    """Evaluate GLUE's dev sets, with one run for each task."""
    if isinstance(model, Model) or not Path(model).is_dir():
        raise UsageError(
            "--suite glue takes a folder with a run for each task, such as runs/sst2 and "
            "runs/cola, which `firth finetune` writes."
        )
    runs, sets = _folders(Path(model)), _folders(data)
    rows, missing, notes = [], [], []
    for task, names in GLUE.items():
        where = [kind for kind, there in (("run", runs), ("data", sets)) if task not in there]
        if where:
            missing.append(task)
            if len(where) == 1:
                notes.append(f"{task} is skipped: there is no {where[0]} for it.")
            continue
        try:
            found = evaluate(runs[task], data=_dev(sets[task]), **options)
            rows.append(_row(task, names, found))
            notes += [f"{task}: {note}" for note in selection_note(found.selected_on)]
        except FirthError as error:
            missing.append(task)
            notes.append(f"{task} is skipped: {error}")
    if not rows:
        raise InputError(
            " ".join(notes) or f"{model} and {data} have no GLUE task in common: {', '.join(GLUE)}."
        )
    counted = [row.name for row in rows if row.name not in UNCOUNTED]
    lacking = [task for task in missing if task not in UNCOUNTED]
    if lacking:
        notes.append(f"The average excludes {', '.join(lacking)}: it is not the GLUE score.")
    scores = [row.score for row in rows if row.name in counted]
    return SuiteResult(
        suite="glue",
        rows=rows,
        averages={"score": mean_metric(scores)} if scores else {},
        averaged=counted,
        missing=missing,
        notes=notes,
    )


def _folders(place: Path) -> dict[str, Path]:
    """Find the folders of tasks, in any spelling: SST-2, sts_b."""
    found = {re.sub(r"[-_ ]", "", path.name.lower()): path for path in sorted(place.iterdir())}
    return {name: path for name, path in found.items() if name in GLUE and path.is_dir()}


def _dev(folder: Path) -> str:
    """Find the dev file of a task."""
    sources, _ = find_sources([folder], ReadOptions())
    for source in sources:
        if DEV.match(Path(source.name).name.lower()):
            return source.name
    raise InputError(f"{folder} has no file whose name begins with dev or valid.")


def _row(name: str, measures: tuple[str, ...], found: EvaluationResult) -> SuiteRow:
    """Compute a task's score: a metric, or the mean of two."""
    if absent := [measure for measure in measures if measure not in found.metrics]:
        raise InputError(f"its run has the metrics {', '.join(found.metrics)}, not {absent[0]}.")
    chosen = [found.metrics[measure] for measure in measures]
    value = fmean(metric.value for metric in chosen)
    lows, highs = ([getattr(m, end) for m in chosen] for end in ("low", "high"))
    score = Metric(value=value, low=None, high=None, reason=NO_MEAN_INTERVAL)
    if None not in lows:
        score = Metric(value=value, low=fmean(lows), high=fmean(highs))
    measure = ("mean of " if len(measures) > 1 else "") + " and ".join(measures)
    return SuiteRow(
        name=name,
        measure=measure,
        score=score,
        n=found.n,
        metrics=found.metrics,
        selected_on=found.selected_on,
    )


# ---- texts --------------------------------------------------------------------------------------


def _lm(model: str | Path | Model, data: Path, options: dict[str, Any]) -> SuiteResult:
    """Evaluate every file of a folder, with the task and convention of its name."""
    opened = load_if_needed(model, options["device"])
    rows, notes = [], []
    sources, skipped = find_sources([data], ReadOptions())
    for source, task, convention in _kinds(sources):
        found = evaluate(opened, data=source.name, task=task, convention=convention, **options)
        name = str(Path(source.name).relative_to(data))
        metrics, first = found.metrics, next(iter(found.metrics))
        measure = f"{convention or task}: {first}"
        rows.append(
            SuiteRow(name=name, measure=measure, score=metrics[first], n=found.n, metrics=metrics)
        )
        notes += [note for note in found.notes if note not in notes]
    if skipped:
        notes.append(f"{skipped:,} files with unknown extensions were skipped.")
    of = next((m for m in ("bits_per_byte", PSEUDO) if any(m in row.metrics for row in rows)), "")
    counted = {row.name: row.metrics[of] for row in rows if of in row.metrics}
    averages = {of: mean_metric(list(counted.values()))} if of else {}
    return SuiteResult(
        suite="lm", rows=rows, averages=averages, averaged=list(counted), notes=notes
    )


def _kinds(sources: list[InputFile]) -> Iterator[tuple[InputFile, str, str]]:
    """Yield each file with its task and convention.

    >>> names = ("lambada_test.txt", "wiki.test.txt", "notes.txt")
    >>> files = [InputFile(name, "txt") for name in names]
    >>> [kind for _, *kind in _kinds(files)]
    [['last-word', ''], ['lm', 'wikitext'], ['lm', '']]
    """
    for source in sources:
        name = Path(source.name).name.lower()
        yield next((source, task, how) for what, task, how in KINDS if what.search(name))


def _blimp(model: str | Path | Model, data: Path, options: dict[str, Any]) -> SuiteResult:
    """Evaluate every set of minimal pairs and their unweighted mean."""
    found = evaluate(model, data=data, task="minimal-pairs", **options)
    sizes = found.details["sizes"]
    rows = [
        SuiteRow(name=name, measure="accuracy", score=row["accuracy"], n=sizes[name], metrics=row)
        for name, row in found.parts.items()
    ]
    averages = {
        measure: mean_metric([row.metrics[measure] for row in rows]) for measure in found.metrics
    }
    return SuiteResult(
        suite="blimp",
        rows=rows,
        averages=averages,
        averaged=[row.name for row in rows],
        groups=found.groups,
        notes=found.notes,
    )


SUITES: dict[str, Callable[..., SuiteResult]] = {"glue": _glue, "lm": _lm, "blimp": _blimp}
