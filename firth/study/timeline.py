"""Study: what did each step from bag of words to the Transformer bring, on one's own data?

Every method gets the same labels, and those that are pre-trained the same text and as many passes
over it. The rows are data (`timeline_models.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from firth.study.cells.baseline_cells import tfidf
from firth.study.cells.domain_cells import SOURCE_ROWS, TARGET_ROWS, joined_domains, review_domains
from firth.study.cells.evaluation_cells import bits_per_byte
from firth.study.cells.finetuning_cells import finetuned, metric_of
from firth.study.cells.held_out_text import split_documents
from firth.study.cells.input_cells import File, prepared_text, split_task_data, stories, task_data
from firth.study.cells.pretraining_cells import MODEL
from firth.study.cells.timeline_cells import pretrained_by_passes
from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.statistics import Scores
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.timeline_figures import Timeline, timeline_figures, timeline_rows
from firth.study.timeline_findings import timeline_findings
from firth.study.timeline_models import BAG_OF_WORDS, LABELS, METHODS, NGRAMS, TASKS, TEXT, Method
from firth.utils.config_fields import Doc
from firth.utils.errors import InputError, UsageError

BITS = "bits per byte"


@dataclass(frozen=True, kw_only=True)
class TimelineSettings:
    """Settings of the study."""

    methods: Annotated[tuple[str, ...], Doc("Methods that are compared.")] = tuple(
        method.name for method in METHODS
    )
    labels: Annotated[tuple[int, ...], Doc("Numbers of labels.", min=1)] = (30, 100, 300)
    reference_labels: Annotated[
        int, Doc("Labels with which the scores of the table are reached.", min=1)
    ] = 100
    words: Annotated[int, Doc("Words of the stories to pre-train on.", min=1)] = 100_000
    passes: Annotated[int, Doc("Passes of pre-training over the text.", min=1)] = 3
    vocab_size: Annotated[int, Doc("Vocabulary size of the subword tokenizer.", min=1)] = 1500
    max_words: Annotated[int, Doc("Maximum vocabulary of the word tokenizer.", min=1)] = 20_000
    batch_tokens: Annotated[int, Doc("Tokens per optimizer step of pre-training.", min=1)] = 1024
    max_length: Annotated[int, Doc("Maximum sequence length in tokens.", min=1)] = 64
    steps: Annotated[int, Doc("Optimizer steps of fine-tuning.", min=1)] = 60
    batch_size: Annotated[int, Doc("Examples per optimizer step of fine-tuning.", min=1)] = 16
    test_size: Annotated[int, Doc("Maximum number of test examples.", min=1)] = 200
    texts: Annotated[int, Doc("Held-out texts that are scored (task lm).", min=1)] = 100


@dataclass(frozen=True, kw_only=True)
class TimelineData:
    """The task, its files, and the text to pre-train on."""

    task: str
    labelled: Cell | None  # None: task lm
    metric: str
    text: File
    held_out: File
    counts: tuple[int, ...]  # numbers of labels; lm: (0,)
    source_test: int | None = None  # test examples of the first domain, if there are two


def run_timeline(run: StudyRun) -> StudyAnalysis:
    """Train every method with the same labels, text and passes."""
    data = _data(run)
    methods = _methods(run, data.task)
    grid = {
        (method.name, count): _cells(run, data, method, count)
        for method in methods
        for count in data.counts
    }
    results = run.run(cell for cells in grid.values() for cell in cells)
    found = _timeline(run, data, methods, grid, results)
    return StudyAnalysis(
        rows=timeline_rows(found),
        findings=timeline_findings(found),
        figures=timeline_figures(found),
        notes=_notes(run, data),
    )


# ---- data


def _data(run: StudyRun) -> TimelineData:
    task = run.inputs.task or LABELS
    if task not in TASKS:
        raise UsageError(f"The study timeline compares {', '.join(TASKS)}, not {task}.")
    given = run.inputs.data if task == TEXT and run.inputs.data else run.inputs.text
    folder = stories(run.settings.words)
    text: File = folder / "train.txt"
    held_out: File = folder / "dev.txt"
    if given is not None:
        split = Cell(split_documents, {"text": given}, name="held-out documents")
        text, held_out = split / "train.jsonl", split / "valid.jsonl"
    texts: dict[str, Any] = {"task": task, "text": text, "held_out": held_out}
    if task == TEXT:
        return TimelineData(labelled=None, metric=BITS, counts=(0,), **texts)
    two_domains = task == LABELS and run.inputs.data is None
    labelled = _two_domains(run) if two_domains else _one_domain(run, task)
    (sizes,) = run.require(labelled)
    return TimelineData(
        labelled=labelled,
        metric=metric_of(task, run.cache.directory(labelled) / "test.jsonl"),
        counts=_counts(run, sizes["train"]),
        source_test=sizes.get("source_test"),
        **texts,
    )


def _one_domain(run: StudyRun, task: str) -> Cell:
    return task_data(run.inputs, test_size=run.settings.test_size, task=task)


def _two_domains(run: StudyRun) -> Cell:
    """Return reviews of books and films to train on, tested on these and on reviews of meals."""
    written = {"source": ("book", "film"), "target": ("meal",), "texts": 1, "rows": 1200}
    domains = Cell(review_domains, written, name="reviews of two domains")
    how = {"task": LABELS, "test": None, "test_size": run.settings.test_size, "columns": {}}
    source, target = (
        Cell(split_task_data, {**how, "data": domains / name}, name="classify data")
        for name in (SOURCE_ROWS, TARGET_ROWS)
    )
    both = {"source": source, "target": target, "train_on": "source"}
    return Cell(joined_domains, both, name="trained on the source")


def _counts(run: StudyRun, available: int) -> tuple[int, ...]:
    """Return the numbers of labels that the data has."""
    wanted = sorted({*run.settings.labels, run.settings.reference_labels})
    counts = tuple(count for count in wanted if count <= available)
    if len(counts) < len(wanted):
        run.note(f"There are {available:,} training examples; larger numbers were left out.")
    if run.settings.reference_labels not in counts:
        raise InputError(
            f"{available:,} training examples are too few for reference_labels="
            f"{run.settings.reference_labels}; choose a smaller number with --set."
        )
    return counts


def _notes(run: StudyRun, data: TimelineData) -> tuple[str, ...]:
    notes = [
        f"Passes of pre-training over the text: {run.settings.passes}; n-grams are counted once."
    ]
    if data.source_test is not None:
        notes.append("Trained on reviews of books and films; the other domain is that of meals.")
    if data.task == TEXT:
        notes.append("All methods have the same subword tokenizer.")
    return tuple(notes)


# ---- runs


def _methods(run: StudyRun, task: str) -> list[Method]:
    known = [method.name for method in METHODS]
    for name in run.settings.methods:
        if name not in known:
            raise UsageError(f"There is no method {name!r}; there are {', '.join(known)}.")
    chosen = [m for m in METHODS if m.name in run.settings.methods and task in m.tasks]
    return sorted(chosen, key=lambda method: method.year)


def _cells(run: StudyRun, data: TimelineData, method: Method, count: int) -> list[Cell]:
    settings: TimelineSettings = run.settings
    if data.labelled is None:
        scored = {"text": data.held_out, "texts": settings.texts, "max_words": 60}
        name = f"{method.name}, seed {{}}"
        models = {seed: _pretraining(run, data, method, seed) / MODEL for seed in run.seeds}
        return [
            Cell(bits_per_byte, {"model": model, **scored}, seed=seed, name=name.format(seed))
            for seed, model in models.items()
        ]
    name = f"{method.name}, {count:,} labels"
    if method.name in (BAG_OF_WORDS, NGRAMS):
        longest = {"longest": 1} if method.name == BAG_OF_WORDS else {}
        return run.with_seeds(tfidf, name, data=data.labelled, labels=count, **longest)
    pretrained = _pretraining(run, data, method) / MODEL if method.preset else None
    own = method.model.get(data.task)
    shared: dict[str, Any] = {"model": own or pretrained}
    if own and pretrained is not None:
        shared["vectors"] = pretrained
    options = {
        "batch_size": min(settings.batch_size, count),
        "overrides": {"steps": settings.steps},
        **method.options,
    }
    shared |= {"task": data.task, "data": data.labelled, "labels": count, "options": options}
    return run.with_seeds(finetuned, name, **shared)


def _pretraining(run: StudyRun, data: TimelineData, method: Method, seed: int = 0) -> Cell:
    """Return the cell that pre-trains; once for all seeds of fine-tuning, as a published model."""
    settings: TimelineSettings = run.settings
    kind = "wordpiece" if data.task == TEXT else method.tokenizer
    size = settings.max_words if kind == "word" else settings.vocab_size
    text = {"text": data.text, "valid": data.held_out, "tokenizer": None, "vocab_size": size}
    shards = Cell(prepared_text, {**text, "kind": kind}, name=f"shards of {kind} tokens")
    loop = {"batch_tokens": settings.batch_tokens, "max_length": settings.max_length}
    how = {
        "preset": method.preset,
        "passes": settings.passes,
        "options": {**loop, "overrides": {"validate_every": 1, **method.sizes}},
    }
    name = f"{method.name}, pre-training"
    return Cell(pretrained_by_passes, {"data": shards, **how}, seed=seed, name=name)


# ---- results


def _timeline(
    run: StudyRun,
    data: TimelineData,
    methods: Sequence[Method],
    grid: Mapping[tuple[str, int], list[Cell]],
    results: Results,
) -> Timeline:
    scores = {key: results.scores(cells, data.metric) for key, cells in grid.items()}
    known = {key: one for key, one in scores.items() if one is not None}
    reference = run.settings.reference_labels if data.labelled is not None else 0
    cost: dict[str, dict[str, float]] = {}
    for method in methods:
        cells = grid[method.name, reference]
        cost[method.name] = _cost(run, data, method, cells, results)
    size = data.source_test
    return Timeline(
        metric=data.metric,
        reference=reference,
        methods=tuple(m for m in methods if (m.name, reference) in known),
        curves={key: _first(one, size) for key, one in known.items()},
        other_domain={
            name: one.examples(slice(size, None))
            for (name, count), one in known.items()
            if size is not None and count == reference
        },
        cost=cost,
        errors={
            method.name: error
            for method in methods
            if (error := results.first_error(grid[method.name, reference]))
        },
    )


def _first(scores: Scores, size: int | None) -> Scores:
    """Return the scores on the first domain."""
    return scores if size is None else scores.examples(slice(size))


def _cost(
    run: StudyRun, data: TimelineData, method: Method, cells: Sequence[Cell], results: Results
) -> dict[str, float]:
    """Return the parameters of a method, and the seconds of its training and pre-training."""
    own = results.values_of(cells)
    good = [cell for cell in cells if not results[cell].error]
    # the training alone: the time of a cell includes that of the cells it needs
    seconds = [results[cell].values.get("seconds", results[cell].seconds) for cell in good]
    values = {"seconds": sum(seconds) / max(1, len(seconds))} if data.labelled is not None else {}
    if own and "parameters" in own[0]:
        values["parameters"] = own[0]["parameters"]
    if method.preset:
        before = run.cache.find(
            _pretraining(run, data, method, run.seeds[0] if data.task == TEXT else 0)
        )
        if before is not None:
            values["pretraining_seconds"] = before.values["seconds"]
            values.setdefault("parameters", before.values["parameters"])
    return values


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
