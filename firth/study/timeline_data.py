"""The inputs of the study `timeline`: labelled examples, and text to pre-train on."""

from __future__ import annotations

from dataclasses import dataclass

from firth.study.cells.domain_cells import SOURCE_ROWS, TARGET_ROWS, joined_domains, review_domains
from firth.study.cells.finetuning_cells import metric_of
from firth.study.cells.held_out_text import split_documents
from firth.study.cells.input_cells import File, split_task_data, stories, task_data
from firth.study.cells.short_context_cells import short_contexts
from firth.study.engine.cell import Cell
from firth.study.engine.study import StudyInputs, StudyRun
from firth.study.timeline_models import ANSWERS, LABELS, TASKS, TEXT
from firth.tasks.readers.columns import TaskFile, good_examples
from firth.tasks.registry import task_named
from firth.utils.errors import InputError, UsageError

BITS = "bits per byte"
REVIEWS = 1200  # of each domain
# Fine-tuning unless the settings are set; a text with a question is several times as long.
LABEL_COUNTS, STEPS, BATCH_SIZE = (30, 100, 300), 100, 16
SPAN_COUNTS, SPAN_STEPS, SPAN_BATCH_SIZE = (100, 300), 60, 8
CONTEXT_WORDS = 60  # of the text of a question; the stories have about 200


@dataclass(frozen=True, kw_only=True)
class TimelineData:
    """The task, its files, and the text to pre-train on."""

    task: str
    metric: str
    text: File
    held_out: File  # documents of the text, or of others like it
    labelled: Cell | None = None  # None: task lm
    counts: tuple[int, ...] = (0,)  # numbers of labels; 0: task lm
    reference: int = 0  # number of labels of the table
    source_test: int | None = None  # test examples of the first domain, if there are two
    steps: int = STEPS  # of fine-tuning
    batch_size: int = BATCH_SIZE


def timeline_data(run: StudyRun) -> TimelineData:
    """Return the user's data and text, or those of the stories."""
    task = run.inputs.task or LABELS
    if task not in TASKS:
        raise UsageError(f"The study timeline compares {', '.join(TASKS)}, not {task}.")
    text, held_out = _text(run, task)
    if task == TEXT:
        return TimelineData(task=task, metric=BITS, text=text, held_out=held_out)
    labelled = _labelled(run, task)
    for note in data_notes(run.inputs, task):
        run.note(note)
    (sizes,) = run.require(labelled)
    counts, reference = _counts(run, task, sizes["train"])
    steps, batch_size = (SPAN_STEPS, SPAN_BATCH_SIZE) if task == ANSWERS else (STEPS, BATCH_SIZE)
    return TimelineData(
        task=task,
        metric=metric_of(task, run.cache.files(labelled) / "test.jsonl"),
        text=text,
        held_out=held_out,
        labelled=labelled,
        counts=counts,
        reference=reference,
        source_test=sizes.get("source_test"),
        steps=run.settings.steps or steps,
        batch_size=run.settings.batch_size or batch_size,
    )


def _text(run: StudyRun, task: str) -> tuple[File, File]:
    """Return the text to pre-train on and held-out text; of a user's text, every 50th document."""
    given, held_out = run.inputs.text, None
    if task == TEXT and run.inputs.data is not None:
        if given is not None:
            raise UsageError("A language model is trained on one text: give --data or --text.")
        given, held_out = run.inputs.data, run.inputs.test
    if given is None:
        folder = stories(run.settings.words)
        return folder / "train.txt", folder / "dev.txt"
    if held_out is not None:
        return given, held_out
    split = Cell(split_documents, {"text": given}, name="held-out documents")
    run.require(split)  # too little text is an error before the first run
    return split / "train.jsonl", split / "valid.jsonl"


def _labelled(run: StudyRun, task: str) -> Cell:
    """Return the labelled examples, split into training, dev and test examples."""
    of_stories = run.inputs.data is None
    if of_stories and task == LABELS:
        return _two_domains(run)
    data = task_data(run.inputs, test_size=run.settings.test_size, task=task)
    if of_stories and task == ANSWERS:
        shorter = {"data": data, "max_words": CONTEXT_WORDS}
        return Cell(short_contexts, shorter, name="questions about short texts")
    return data


def _two_domains(run: StudyRun) -> Cell:
    """Return reviews of books and films to train on, tested on these and on reviews of meals."""
    written = {"source": ("book", "film"), "target": ("meal",), "texts": 1, "rows": REVIEWS}
    domains = Cell(review_domains, written, name="reviews of two domains")
    how = {"task": LABELS, "test": None, "test_size": run.settings.test_size, "columns": {}}
    source, target = (
        Cell(split_task_data, {**how, "data": domains / name}, name="classify data")
        for name in (SOURCE_ROWS, TARGET_ROWS)
    )
    both = {"source": source, "target": target, "train_on": "source"}
    return Cell(joined_domains, both, name="trained on the source")


def data_notes(inputs: StudyInputs, task: str) -> list[str]:
    """Return the notes of the task on the user's examples, such as tags that break BIO."""
    if inputs.data is None:
        return []
    chosen, file = task_named(task), TaskFile(inputs.data, columns=dict(inputs.columns or {}))
    return chosen.data_notes(list(good_examples(chosen.read, file)), inputs.data)


def _counts(run: StudyRun, task: str, available: int) -> tuple[tuple[int, ...], int]:
    """Return the numbers of labels that the data has, and the one of the table."""
    if available < 2:
        raise InputError(
            f"{available} training examples are left, and the study needs 2: add some."
        )
    given = tuple(count for count in run.settings.labels if count)
    counts = given or (SPAN_COUNTS if task == ANSWERS else LABEL_COUNTS)
    wanted = sorted({*counts, run.settings.reference_labels})
    reference = min(run.settings.reference_labels, available)
    kept = tuple(sorted({reference, *(count for count in wanted if count <= available)}))
    if wanted[-1] > available:
        run.note(
            f"There are {available:,} training examples; larger numbers of labels were left out, "
            f"and the table has {reference:,}."
        )
    return kept, reference
