"""Study: how many labels is pre-training worth?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from firth.metrics.bootstrap import to_json
from firth.model import load
from firth.models.language_model import predicts_tokens
from firth.study.cells.baseline_cells import prompted, tfidf
from firth.study.cells.finetuning_cells import finetuned, metric_of
from firth.study.cells.input_cells import model_path, task_data
from firth.study.engine.cell import Cell
from firth.study.engine.statistics import Scores, metric_texts
from firth.study.engine.study import Finding, Study, StudyAnalysis, StudyRun
from firth.study.label_curves import Curves, finite, labels_to_reach
from firth.utils.config_fields import Doc
from firth.utils.errors import InputError, UsageError
from firth.utils.figures import DataTable, LineChart, Point

PRETRAINED, SCRATCH, LORA = "pre-trained", "scratch", "LoRA"
TFIDF, PROMPTING = "TF-IDF", "prompting"
STRATEGIES = {PRETRAINED: "full", SCRATCH: "full", LORA: "lora"}
LABELS_ONLY = ("classify", "pair")  # tasks of TF-IDF and prompting
REVIEWS = {
    "template": "{text} I thought it was {label}.",
    "labels": "negative=dull,positive=lovely",
}


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """Settings of the study."""

    labels: Annotated[tuple[int, ...], Doc("Numbers of labels.", min=1)] = (10, 30, 100, 300, 1000)
    methods: Annotated[
        tuple[str, ...], Doc("Methods: pre-trained, scratch, LoRA, TF-IDF, prompting.")
    ] = (PRETRAINED, SCRATCH, LORA, TFIDF, PROMPTING)
    reference_labels: Annotated[
        int, Doc("Labels of the pre-trained model whose score the others must reach.", min=1)
    ] = 100
    epochs: Annotated[float, Doc("Passes over the labelled examples.", min=0)] = 4.0
    min_steps: Annotated[
        int, Doc("Minimum number of optimizer steps of a fine-tuning run.", min=1)
    ] = 40
    max_steps: Annotated[
        int, Doc("Maximum number of optimizer steps of a fine-tuning run.", min=1)
    ] = 120
    batch_size: Annotated[int, Doc("Examples per optimizer step of fine-tuning.", min=1)] = 16
    shots: Annotated[int, Doc("Demonstrations in a prompt.", min=0)] = 4
    test_size: Annotated[int, Doc("Maximum number of test examples.", min=1)] = 300


def run_labels(run: StudyRun) -> StudyAnalysis:
    """Fine-tune with more and more labels, with and without pre-training."""
    settings: LabelSettings = run.settings
    task = run.inputs.task or "classify"
    data = task_data(run.inputs, test_size=settings.test_size)
    (sizes,) = run.require(data)
    counts = _counts(run, sizes["train"])
    if run.inputs.data is not None and run.inputs.test is None:
        run.note(
            f"{sizes['test']:,} examples were held out of {run.inputs.data.name} as test set, the "
            "same for all runs."
        )
    grid = {
        (method, count): _cells(run, method, task, data, count)
        for method in _methods(run, task, multi_label=sizes["multi_label"])
        for count in counts
    }
    results = run.run(cell for cells in grid.values() for cell in cells)
    metric = metric_of(task, run.cache.files(data) / "test.jsonl")
    found = {key: results.scores(cells, metric) for key, cells in grid.items()}
    curves = {key: scores for key, scores in found.items() if scores is not None}
    return StudyAnalysis(
        rows=[
            _row(*key, found[key], results.first_error(cells), metric)
            for key, cells in grid.items()
        ],
        findings=_findings(curves, counts, settings.reference_labels),
        figures=(_chart(curves, metric), _table(curves, metric)),
    )


def _counts(run: StudyRun, available: int) -> list[int]:
    """Return the numbers of labels that the data has; the largest may be all of it."""
    wanted = sorted(set(run.settings.labels))
    counts = [count for count in wanted if count <= available]
    if len(counts) < len(wanted):
        run.note(f"There are {available:,} training examples; larger numbers were left out.")
        if available > 1.2 * max(counts, default=0):
            counts.append(available)
    if len(counts) < 2:
        raise InputError(
            f"{available:,} training examples are too few for a curve: it needs at least two "
            f"numbers of labels, and begins with {wanted[0]}."
        )
    return counts


def _methods(run: StudyRun, task: str, *, multi_label: bool) -> list[str]:
    """Return the methods that fit the task."""
    known = (*STRATEGIES, TFIDF, PROMPTING)
    for name in run.settings.methods:
        if name not in known:
            raise UsageError(f"There is no method {name!r}; there are {', '.join(known)}.")
    left_out = [] if task in LABELS_ONLY and not multi_label else [TFIDF, PROMPTING]
    if task == "pair" and not multi_label:
        left_out = [PROMPTING]
    if PROMPTING not in left_out and run.inputs.models and not _predicts_tokens(run):
        left_out.append(PROMPTING)
    for name in set(run.settings.methods) & set(left_out):
        run.note(f"{name} does not fit the task or the model, and was left out.")
    return [name for name in run.settings.methods if name not in left_out]


def _predicts_tokens(run: StudyRun) -> bool:
    return predicts_tokens(load(run.inputs.models[0]).network)


def _cells(run: StudyRun, method: str, task: str, data: Cell, count: int) -> list[Cell]:
    settings: LabelSettings = run.settings
    model = model_path(run.inputs.models[0] if run.inputs.models else "stories-encoder")
    name = f"{method}, {count:,} labels"
    if method == TFIDF:
        return run.with_seeds(tfidf, name, data=data, labels=count)
    if method == PROMPTING:
        stories = run.inputs.data is None
        prompting = model if run.inputs.models else model_path("stories-decoder")
        options = {"shots": settings.shots, **(REVIEWS if stories else {})}
        return run.with_seeds(
            prompted, name, model=prompting, task=task, data=data, labels=count, options=options
        )
    steps = math.ceil(settings.epochs * count / settings.batch_size)
    steps = min(max(steps, settings.min_steps), settings.max_steps)
    options = {
        "strategy": STRATEGIES[method],
        "scratch": method == SCRATCH,
        "batch_size": min(settings.batch_size, count),
        "overrides": {"steps": steps},
    }
    return run.with_seeds(
        finetuned, name, model=model, task=task, data=data, labels=count, options=options
    )


def _row(method: str, count: int, scores: Scores | None, error: str, metric: str) -> dict[str, Any]:
    row: dict[str, Any] = {"method": method, "labels": count}
    if scores is not None:
        row |= {metric: to_json(scores.metric()), "by_seed": scores.by_seed.tolist()}
    return {**row, **({"error": error} if error else {})}


def _findings(curves: Curves, counts: Sequence[int], reference: int) -> list[Finding]:
    """Say how many labels the other methods need for the score of the pre-trained model."""
    known = [count for count in counts if (PRETRAINED, count) in curves]
    if not known or len(known) == len(curves):
        return [Finding(name="labels", text="There is nothing to compare.", holds=None)]
    reference = min(known, key=lambda count: abs(math.log(count / reference)))
    others = [method for method in dict.fromkeys(m for m, _ in curves) if method != PRETRAINED]
    others.sort(key=lambda method: method != SCRATCH)
    return [label_gap(curves, reference, method) for method in others]


def label_gap(curves: Curves, reference: int, method: str) -> Finding:
    """Compute how many labels a method needs to reach pre-training with `reference` labels."""
    needed = labels_to_reach(curves, (PRETRAINED, reference), method)
    low, high, counts = needed.low, needed.high, needed.counts
    first = "full fine-tuning" if method == LORA else "pre-training"
    without = {SCRATCH: "without"}.get(method, f"with {method}")
    beyond = " (beyond the data)" if needed.value == math.inf else ""
    return Finding(
        name=f"labels-{method.lower()}",
        text=f"{reference:,} labels with {first} = {needed.text} {without}{beyond}.",
        holds=True if low > reference else False if high < reference else None,
        value=finite(needed.value),
        low=float(min(low, counts[-1])),
        high=finite(high),
        unit="labels",
        beyond=None if math.isfinite(needed.value) else float(counts[-1]),
        smallest=float(counts[0]),
    )


def _chart(curves: Curves, metric: str) -> LineChart:
    lines: dict[str, list[Point]] = {}
    for (method, count), scores in curves.items():
        found = scores.metric()
        lines.setdefault(method, []).append(Point(count, found.value, found.low, found.high))
    return LineChart(
        "Label efficiency",
        "labelled examples",
        metric,
        {method: tuple(points) for method, points in lines.items()},
        log_x=True,
        caption="Means over seeds, with 95 % intervals that resample seeds and examples.",
    )


def _table(curves: Curves, metric: str) -> DataTable:
    methods = dict.fromkeys(method for method, _ in curves)
    counts = sorted({count for _, count in curves})
    rows = tuple(
        (method, *(_cell(curves, method, count) for count in counts)) for method in methods
    )
    columns = ("method", *(f"{count:,} labels" for count in counts))
    return DataTable(f"{metric.capitalize()} with its 95 % interval", columns, rows)


def _cell(curves: Curves, method: str, count: int) -> str:
    if (method, count) not in curves:
        return "failed"
    value, ends = metric_texts(curves[method, count].metric())
    return f"{value} ({ends})"


STUDY = Study(
    name="labels",
    question="How many labels is pre-training worth?",
    settings=LabelSettings,
    run=run_labels,
    takes=("data", "test", "task", "models"),
    medium={"labels": (10, 30, 100, 300, 1000, 3000), "max_steps": 600, "test_size": 1000},
    large={
        "labels": (10, 30, 100, 300, 1000, 3000, 10_000),
        "max_steps": 1000,
        "test_size": 1000,
    },
)
