"""Text generation for a file of prompts, and for one prompt with several decoding strategies.

Prompts are processed in windows, so that a file may be larger than memory and a pipe need not
end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from firth.data.readers import Bad
from firth.inference.generation.generation_config import DEFAULT_BEAMS, GenerationConfig
from firth.inference.generation.text_generation import (
    MAX_BATCH_SIZE,
    Completion,
    EncodedPrompt,
    PromptCompletions,
    TextGenerator,
)
from firth.tasks.readers.columns import PROMPT_TEXT, find_source, reporting_errors, texts_in
from firth.utils.errors import FirthError, InputError
from firth.utils.streams import bounded_batches, interleave_errors

# The course's temperatures, and the two deterministic strategies.
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "temperature 0.5": {"method": "sample", "temperature": 0.5},
    "temperature 1.0": {"method": "sample", "temperature": 1.0},
    "temperature 2.0": {"method": "sample", "temperature": 2.0},
    f"{DEFAULT_BEAMS} beams": {"method": "beam", "beams": DEFAULT_BEAMS},
}


class FilePrompt(NamedTuple):
    """A prompt and its place in a file."""

    where: str
    text: str


def read_prompts(
    file: str | Path, *, column: str | None = None, format: str | None = None
) -> Iterator[FilePrompt | InputError]:
    """Read the prompts of a file: lines or a table's column; errors take the place of rows."""
    source = find_source(file, format, "txt")

    def read(tell: Bad) -> Iterator[FilePrompt]:
        for where, text in texts_in(source, PROMPT_TEXT, column, tell):
            with reporting_errors(tell):
                if not text.strip():
                    raise InputError(f"{where} is empty: a prompt needs text.")
                yield FilePrompt(where, text)

    return interleave_errors(read, source.name)


def complete_each(
    generator: TextGenerator,
    prompts: Iterable[FilePrompt | InputError],
    *,
    bad: Bad,
    live: bool = False,
) -> Iterator[PromptCompletions | InputError]:
    """Yield completions in the order of the prompts; errors of rows are also passed to `bad`.

    With `live`, a prompt does not wait for others that have not arrived yet.
    """
    number = 0
    for window in bounded_batches(prompts, _size, max_items=MAX_BATCH_SIZE, live=live):
        encoded = [_encode(generator, row) for row in window]
        good = [
            (number + i, row) for i, row in enumerate(encoded) if isinstance(row, EncodedPrompt)
        ]
        number += len(window)
        done = generator.complete_encoded(good)
        for row in encoded:
            if isinstance(row, InputError):
                bad(row)
                yield row
            else:
                yield next(done)


def _size(row: FilePrompt | InputError) -> int:
    return 0 if isinstance(row, InputError) else len(row.text)


def _encode(generator: TextGenerator, row: FilePrompt | InputError) -> EncodedPrompt | InputError:
    if isinstance(row, InputError):
        return row
    try:
        return generator.encode_prompt(row.text)
    except FirthError as error:
        return InputError(f"{row.where}: {error}")


def as_values(found: PromptCompletions | InputError) -> dict[str, Any]:
    """Convert completions, or the error of a prompt, to plain JSON values."""
    return {"error": str(found)} if isinstance(found, InputError) else found.values()


def strategies(
    generator: TextGenerator, prompt: str
) -> dict[str, tuple[GenerationConfig, Completion]]:
    """Complete one prompt with several decoding strategies."""
    found = {}
    for name, overrides in STRATEGIES.items():
        strategy_generator = replace(generator, config=replace(generator.config, **overrides))
        found[name] = (
            strategy_generator.config,
            next(strategy_generator.complete([prompt])).completions[0],
        )
    return found
