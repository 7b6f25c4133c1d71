"""Text generation for a file of prompts, and for one prompt with several decoding strategies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from firth.data.readers import Bad
from firth.inference.generation.generation_config import DEFAULT_BEAMS
from firth.inference.generation.text_generation import (
    MAX_BATCH_SIZE,
    Completion,
    PromptCompletions,
    TextGenerator,
)
from firth.jobs.row_streams import EncodedText, answer_rows, encoded_texts
from firth.tasks.readers.columns import PROMPT_TEXT, find_source
from firth.utils.errors import InputError

# The course's temperatures, and the two deterministic strategies.
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "temperature 0.5": {"method": "sample", "temperature": 0.5},
    "temperature 1.0": {"method": "sample", "temperature": 1.0},
    "temperature 2.0": {"method": "sample", "temperature": 2.0},
    f"{DEFAULT_BEAMS} beams": {"method": "beam", "beams": DEFAULT_BEAMS},
}


def complete_file(
    generator: TextGenerator,
    file: str | Path,
    *,
    column: str | None = None,
    format: str | None = None,
    bad: Bad,
) -> Iterator[PromptCompletions | InputError]:
    """Complete the prompts of a file in their order: its lines, or a table's column.

    Errors of single rows are also passed to `bad`, and the stream continues.
    """
    source = find_source(file, format, "txt")

    def complete(rows: list[EncodedText]) -> Iterator[PromptCompletions]:
        return generator.complete_encoded([(row.number, row.encoded) for row in rows])

    rows = encoded_texts(
        source, PROMPT_TEXT, column, generator.encode_prompt, needed_for="a prompt"
    )
    found = answer_rows(
        rows,
        complete,
        lambda row: len(row.text),
        bad=bad,
        max_items=MAX_BATCH_SIZE,
        live=source.is_stream,
    )
    return (completions for _, completions in found)


def strategies(generator: TextGenerator, prompt: str) -> dict[str, Completion]:
    """Complete one prompt with several decoding strategies."""
    found = {}
    for name, overrides in STRATEGIES.items():
        own = replace(generator, config=replace(generator.config, **overrides))
        found[name] = next(own.complete([prompt])).completions[0]
    return found
