"""Cells that make the inputs of a study: the stories, task files, a tokenizer, shards.

All runs of a study read the same files, which are made once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.data.stories import write_stories
from firth.formats.hub import resolve
from firth.formats.tokenizers.loading import load_tokenizer
from firth.jobs.preparation import prepare
from firth.study.engine.cell import Cell, CellFile
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.study import StudyInputs
from firth.tasks.readers.columns import TaskFile, good_examples
from firth.tasks.readers.examples import ChoiceExample, LabelledExample, QuestionExample
from firth.tasks.readers.subsampling import stratified_sample
from firth.tasks.registry import task_named
from firth.tasks.task import Example, Task
from firth.tokenizers.trainer import train_tokenizer
from firth.utils.errors import InputError
from firth.utils.files import atomic_file

File = Path | Cell | CellFile
STORY_FILES = {  # task: its file among the stories, without the split
    "classify": ("sentiment", "tsv"),
    "pair": ("entailment", "tsv"),
    "tag": ("entities", "conll"),
    "span": ("questions", "json"),
}
VALID_FRACTION = 0.05  # documents of a user's text for validation: enough for intervals
DEV_SIZE = 16  # for the evaluation at the end of a run; the no-answer threshold of span is fitted
TEST_SEED = 200  # of stories for tests only: no text is pre-trained on, no story is in two parts


def story_corpus(context: CellContext, *, words: int, first_seed: int) -> Mapping[str, Any]:
    """Write the stories and their task files."""
    out = context.folder / "stories"
    found = write_stories(out, words=words, seed=first_seed, overwrite=True, progress=_quiet)
    return {"words": found.words, "stories": found.stories}


def stories(words: int = 300_000, first_seed: int = 100) -> CellFile:
    """Return the folder of the stories; seeds 1 to 48 are the embedded models' training text."""
    settings = {"words": words, "first_seed": first_seed}
    return Cell(story_corpus, settings, name="the stories") / "stories"


def split_task_data(
    context: CellContext,
    *,
    task: str,
    data: File,
    test: File | None,
    test_size: int,
    columns: Mapping[str, str],
) -> Mapping[str, Any]:
    """Write train.jsonl, test.jsonl and a small dev.jsonl; without a test file, split once.

    The dev examples are taken out of the training examples: nothing is fitted to the test examples.
    """
    chosen, path = task_named(task), context.path(data)
    examples = list(good_examples(chosen.read, TaskFile(path, columns=columns)))
    if test is not None:
        source = TaskFile(context.path(test), columns=columns)
        rest, held_out = examples, list(good_examples(chosen.read, source))
        if test_size < len(held_out):
            kept, _ = stratified_sample(chosen.strata(held_out), count=test_size)
            held_out = [held_out[i] for i in kept]
    else:
        held_out, rest = _held_out(chosen, examples, min(test_size, len(examples) // 3))
    if any(isinstance(label, float) for label in chosen.strata([*rest, *held_out])):
        raise InputError(f"{path} has numeric labels, which studies cannot score; give classes.")
    labels = {label for example in rest for label in chosen.labels(example)}
    if chosen.label_unit and len(labels) < 2:
        raise InputError(f"{path} has fewer than two labels: {', '.join(map(str, labels))}.")
    dev, train = _held_out(chosen, rest, min(DEV_SIZE, len(rest) // 10))
    for name, part in {"train": train, "test": held_out, "dev": dev or train}.items():
        write_rows(context.folder / f"{name}.jsonl", part)
    return {
        "train": len(train),
        "test": len(held_out),
        "labels": len(labels),
        "multi_label": any(isinstance(label, tuple) for label in chosen.strata(train)),
    }


def _held_out(
    task: Task, examples: Sequence[Example], size: int
) -> tuple[list[Example], list[Example]]:
    """Hold out at least one example; return the held-out examples and the others."""
    kept, left = stratified_sample(task.strata(examples), count=max(1, size), leave=1)
    return [examples[i] for i in kept], [examples[i] for i in left]


def task_data(inputs: StudyInputs, *, test_size: int, task: str = "classify") -> Cell:
    """Return the cell with the task files of the user, or else of the stories."""
    task = inputs.task or task
    name, ending = STORY_FILES.get(task, ("sentiment", "tsv"))
    folder = stories()
    given = inputs.data is not None
    settings = {
        "task": task,
        "data": inputs.data if given else folder / f"{name}/train.{ending}",
        "test": inputs.test if given else folder / f"{name}/test.{ending}",
        "test_size": test_size,
        "columns": dict(inputs.columns or {}),
    }
    return Cell(split_task_data, settings, name=f"{task} data")


def example_row(example: Example) -> dict[str, Any]:
    """Convert an example to a row of JSONL that its task reads.

    >>> example_row(LabelledExample(text="How fine!", label="positive"))
    {'text': 'How fine!', 'label': 'positive'}
    """
    match example:
        case LabelledExample(text=text, second=None, label=label):
            return {"text": text, "label": label}
        case LabelledExample(text=text, second=second, label=label):
            return {"text_a": text, "text_b": second, "label": label}
        case ChoiceExample(text=text, choices=choices, label=label):
            return {"text": text, "choices": choices, "label": label}
        case QuestionExample(question=question, context=context, answers=answers):
            spans = {
                "text": [answer.text for answer in answers],
                "answer_start": [answer.start for answer in answers],
            }
            return {"id": example.id, "question": question, "context": context, "answers": spans}
    return {"words": example.words, "tags": example.tags}


def write_rows(path: Path, examples: Iterable[Example]) -> None:
    """Write examples as JSONL that their task reads."""
    with atomic_file(path) as file:
        for example in examples:
            file.write(json.dumps(example_row(example), ensure_ascii=False).encode() + b"\n")


def prepared_text(
    context: CellContext,
    *,
    text: File,
    valid: File | None,
    tokenizer: File | None,
    vocab_size: int,
    kind: str = "wordpiece",
) -> Mapping[str, Any]:
    """Train a tokenizer on the text unless there is one, and write shards."""
    path, folder = context.path(text), context.folder
    if tokenizer is None:
        trained, _ = train_tokenizer(
            [path],
            kind=kind,
            vocab_size=vocab_size,
            lowercase=kind == "wordpiece",
            sentinels=100,
            progress=_quiet,
        )
        trained.save(folder / "tokenizer")
    else:
        load_tokenizer(context.path(tokenizer)).save(folder / "tokenizer")
    made = prepare(
        [path],
        tokenizer=folder / "tokenizer",
        out=folder / "shards",
        valid=() if valid is None else [context.path(valid)],
        valid_fraction=VALID_FRACTION if valid is None else None,
        progress=_quiet,
    )
    return {"splits": made.splits}


def pretraining_text(inputs: StudyInputs, *, words: int, vocab_size: int) -> Cell:
    """Return the cell with the tokenizer and shards of the user's text, or else of the stories."""
    folder = stories(words)
    given = inputs.text is not None
    settings = {
        "text": inputs.text if given else folder / "train.txt",
        "valid": None if given else folder / "dev.txt",
        "tokenizer": None,
        "vocab_size": vocab_size,
    }
    return Cell(prepared_text, settings, name="tokenizer and shards")


def model_path(name: str) -> Path:
    """Return the directory or file of a model: a path, an embedded model, a model of the hub."""
    return Path(resolve(name))


def _quiet(what: str, done: int, total: int) -> None:
    pass
