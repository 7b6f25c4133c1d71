"""Files that all architectures share: shards, held-out text, blanks, minimal pairs, task data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firth.study.architecture_settings import ArchitectureSettings
from firth.study.cells.blank_cells import removed_words
from firth.study.cells.held_out_text import text_and_held_out
from firth.study.cells.input_cells import File, stories, task_data
from firth.study.engine.cell import Cell
from firth.study.engine.study import StudyRun


@dataclass(frozen=True)
class ArchitectureInputs:
    """The cells and files; `tasks` has the data of each task."""

    shards: Cell
    held_out: File
    blanks: Cell
    pairs: File | None
    tasks: Mapping[str, Cell]


def architecture_inputs(run: StudyRun) -> ArchitectureInputs:
    """Return the cells that make the files."""
    settings: ArchitectureSettings = run.settings
    shards, held_out = text_and_held_out(
        run.inputs, words=settings.words, vocab_size=settings.vocab_size
    )
    removed = {
        "text": held_out,
        "tokenizers": [shards / "tokenizer"],
        "texts": settings.texts,
        "blanks": 1,
        "max_words": settings.max_words,
        "one_token": True,
    }
    own = run.inputs.task is not None or run.inputs.data is not None
    tasks = (run.inputs.task or "classify",) if own else settings.tasks
    return ArchitectureInputs(
        shards=shards,
        held_out=held_out,
        blanks=Cell(removed_words, removed, name="removed words"),
        pairs=_pairs(run),
        tasks={
            task: task_data(run.inputs, test_size=settings.test_size, task=task) for task in tasks
        },
    )


def _pairs(run: StudyRun) -> File | None:
    """Return the minimal pairs; with a user's text, only the user's own."""
    settings: ArchitectureSettings = run.settings
    if settings.pairs_file:
        return Path(settings.pairs_file)
    if run.inputs.text is not None:
        run.note("There are no minimal pairs for your text; --set pairs_file=FILE names some.")
        return None
    return stories(settings.words) / "agreement/test.jsonl"
