"""Study: what did each step from bag of words to the Transformer bring, on one's own data?

Every method gets the same labels, and those that are pre-trained the same text and as many passes
over it. The rows are data (`timeline_models.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.statistics import Scores
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.timeline_data import TimelineData, timeline_data
from firth.study.timeline_figures import Timeline, timeline_figures, timeline_rows
from firth.study.timeline_findings import timeline_findings
from firth.study.timeline_grid import cost, method_cells, pretraining
from firth.study.timeline_models import TEXT, Method, methods_of
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class TimelineSettings:
    """Settings of the study."""

    methods: Annotated[
        tuple[str, ...], Doc("Methods that are compared; all: those of the task.")
    ] = (ALL,)
    labels: Annotated[
        tuple[int, ...], Doc("Numbers of labels. 0: 30, 100, 300; for span 100, 300.", min=0)
    ] = (0,)
    reference_labels: Annotated[
        int, Doc("Labels with which the scores of the table are reached.", min=1)
    ] = 100
    words: Annotated[int, Doc("Words of the stories to pre-train on.", min=1)] = 200_000
    passes: Annotated[int, Doc("Passes of pre-training over the text.", min=1)] = 3
    vocab_size: Annotated[int, Doc("Vocabulary size of the subword tokenizer.", min=1)] = 1500
    max_words: Annotated[int, Doc("Maximum vocabulary of the word tokenizer.", min=1)] = 20_000
    batch_tokens: Annotated[int, Doc("Tokens per optimizer step of pre-training.", min=1)] = 1024
    max_length: Annotated[int, Doc("Maximum sequence length of pre-training.", min=1)] = 64
    steps: Annotated[
        int,
        Doc("Optimizer steps of fine-tuning. 0: 100; for span, whose texts are long, 60.", min=0),
    ] = 0
    batch_size: Annotated[
        int, Doc("Examples per optimizer step of fine-tuning. 0: 16; for span 8.", min=0)
    ] = 0
    test_size: Annotated[int, Doc("Maximum number of test examples.", min=1)] = 200
    texts: Annotated[int, Doc("Held-out texts that are scored (task lm).", min=1)] = 100


def run_timeline(run: StudyRun) -> StudyAnalysis:
    """Train every method with the same labels, text and passes."""
    data = timeline_data(run)
    methods = _methods(run, data.task)
    grid = {
        (method.name, count): method_cells(run, data, method, count)
        for method in methods
        for count in data.counts
    }
    # Pre-training comes first: otherwise all workers would wait for the same cell.
    before = [
        pretraining(run, data, method) for method in methods if method.preset and data.labelled
    ]
    results = run.run([*before, *(cell for cells in grid.values() for cell in cells)])
    found = _timeline(run, data, methods, grid, results)
    findings = timeline_findings(found)
    return StudyAnalysis(
        rows=timeline_rows(found),
        findings=findings,
        figures=timeline_figures(found, findings),
        notes=_notes(run, data),
    )


def _methods(run: StudyRun, task: str) -> list[Method]:
    """Return the chosen methods of a task by year."""
    known, chosen = {row.name: row for row in methods_of(task)}, run.settings.methods
    for name in chosen:
        if name not in (*known, ALL):
            raise UsageError(f"{task} has no method {name!r}; there are {', '.join(known)}.")
    return [row for name, row in known.items() if name in chosen or ALL in chosen]


def _timeline(
    run: StudyRun,
    data: TimelineData,
    methods: Sequence[Method],
    grid: Mapping[tuple[str, int], list[Cell]],
    results: Results,
) -> Timeline:
    scores = {key: results.scores(cells, data.metric) for key, cells in grid.items()}
    known = {key: one for key, one in scores.items() if one is not None}
    of_table = {method.name: grid[method.name, data.reference] for method in methods}
    size = data.source_test
    return Timeline(
        task=data.task,
        metric=data.metric,
        reference=data.reference,
        methods=tuple(m for m in methods if (m.name, data.reference) in known),
        curves={key: _first(one, size) for key, one in known.items()},
        other_domain={
            name: one.examples(slice(size, None))
            for (name, count), one in known.items()
            if size is not None and count == data.reference
        },
        cost={m.name: cost(run, data, m, of_table[m.name], results) for m in methods},
        errors={
            name: error for name, cells in of_table.items() if (error := results.first_error(cells))
        },
    )


def _first(scores: Scores, size: int | None) -> Scores:
    """Return the scores on the first domain."""
    return scores if size is None else scores.examples(slice(size))


def _notes(run: StudyRun, data: TimelineData) -> tuple[str, ...]:
    notes = [
        f"Passes of pre-training over the text: {run.settings.passes}; n-grams are counted once."
    ]
    if data.source_test is not None:
        notes.append("Trained on reviews of books and films; the other domain is that of meals.")
    if data.task == TEXT:
        notes.append("All methods have the same subword tokenizer.")
    return tuple(notes)


STUDY = Study(
    name="timeline",
    question="What did each step from bag of words to the Transformer bring?",
    settings=TimelineSettings,
    run=run_timeline,
    takes=("data", "test", "task", "text"),
    medium={"words": 1_000_000, "passes": 5, "steps": 300, "labels": (30, 100, 300, 1000)},
    large={
        "words": 10_000_000,
        "passes": 5,
        "steps": 1000,
        "labels": (30, 100, 300, 1000, 3000, 10_000),
        "batch_tokens": 8192,
        "max_length": 128,
    },
)
