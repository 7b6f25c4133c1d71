"""`firth generate` for a file of prompts, and one prompt under several strategies.

Prompts are read, continued and passed on some at a time, so that a file may be longer than the
memory and a pipe need not end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from firth.errors import FirthError, InputError
from firth.inference.completions import ROWS, Asked, Completed, Completion, Teller
from firth.inference.settings import BEAMS, Generation
from firth.streams import windows, with_errors
from firth.tasks.reading.columns import TO_GO_ON, find_source, spared, texts_in
from firth.text.readers import Bad

# The lectures' temperatures, and the two ways that draw nothing.
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "temperature 0.5": {"method": "sample", "temperature": 0.5},
    "temperature 1.0": {"method": "sample", "temperature": 1.0},
    "temperature 2.0": {"method": "sample", "temperature": 2.0},
    f"{BEAMS} beams": {"method": "beam", "beams": BEAMS},
}


class Prompt(NamedTuple):
    """A prompt of a file, and where it stands."""

    where: str
    text: str


def read_prompts(
    file: str | Path, *, column: str | None = None, format: str | None = None
) -> Iterator[Prompt | InputError]:
    """The prompts of a file: lines, or one column of a table; what is wrong with a row instead."""
    source = find_source(file, format, "txt")

    def read(tell: Bad) -> Iterator[Prompt]:
        for where, text in texts_in(source, TO_GO_ON, column, tell):
            with spared(tell):
                if not text.strip():
                    raise InputError(f"{where} is empty: there is no text to go on from.")
                yield Prompt(where, text)

    return with_errors(read, source.name)


def complete_each(
    teller: Teller, prompts: Iterable[Prompt | InputError], *, bad: Bad, live: bool = False
) -> Iterator[Completed | InputError]:
    """Completions as they come, in the order of the prompts; `bad` is told of each bad row.

    With `live`, no prompt waits for another that is not there yet.
    """
    number = 0
    for window in windows(prompts, _size, most=ROWS, live=live):
        asked = [_asked(teller, row) for row in window]
        good = [(number + i, row) for i, row in enumerate(asked) if isinstance(row, Asked)]
        number += len(window)
        done = teller.write(good)
        for row in asked:
            if isinstance(row, InputError):
                bad(row)
                yield row
            else:
                yield next(done)


def _size(row: Prompt | InputError) -> int:
    return 0 if isinstance(row, InputError) else len(row.text)


def _asked(teller: Teller, row: Prompt | InputError) -> Asked | InputError:
    if isinstance(row, InputError):
        return row
    try:
        return teller.ask(row.text)
    except FirthError as error:
        return InputError(f"{row.where}: {error}")


def as_values(found: Completed | InputError) -> dict[str, Any]:
    """What was written behind a prompt, or what is wrong with it, as plain JSON values."""
    return {"error": str(found)} if isinstance(found, InputError) else found.values()


def strategies(teller: Teller, prompt: str) -> dict[str, tuple[Generation, Completion]]:
    """One prompt under several strategies, each with what it wrote."""
    found = {}
    for name, changes in STRATEGIES.items():
        own = replace(teller, settings=replace(teller.settings, **changes))
        found[name] = own.settings, next(own.complete([prompt])).completions[0]
    return found
