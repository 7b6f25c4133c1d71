"""What a run learns from: batches in order, text it never sees, and how often tokens occur."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from firth.draws import Longs
from firth.errors import Misuse
from firth.objectives.batch import Batch
from firth.objectives.table import OBJECTIVES
from firth.text.batches import Position, Sampler, in_order
from firth.text.shards import Shards
from firth.text.tokenizer import Tokenizer
from firth.training.job import Job
from firth.training.schedule import Stages
from firth.training.state import Planned, State

COUNTED = 4_000_000  # tokens whose frequencies are counted
VALIDATION_SEED = 1


def planner(
    job: Job, sampler: Sampler, tokenizer: Tokenizer
) -> Callable[[State, Callable[[State], float]], Iterator[Planned]]:
    """Which text comes next, and what is hidden in it; a few batches are made ahead."""
    row, settings, vocabulary = OBJECTIVES[job.objective], job.settings, tokenizer.vocabulary
    lengths, sizes = Stages.parse(settings.length), Stages.parse(settings.batch)

    def make(drawn: Any, options: dict[str, Any], after: Position, asked: int) -> Planned:
        return Planned(row.build(sampler, drawn, vocabulary, **options), after, asked)

    def jobs(state: State, progress: Callable[[State], float]) -> Iterator[Callable[[], Planned]]:
        step, position, asked = state.step, state.position, state.asked
        while True:
            size = sizes.at(progress(replace(state, step=step, asked=asked)))
            now = progress(replace(state, step=step + 1, asked=asked + size))
            length, size = lengths.at(now), sizes.at(now)
            options = options_at(job, now)
            options["length"] = length
            drawn, position = row.draw(sampler, position, tokens=size, **options)
            step, asked = step + 1, asked + size
            yield partial(make, drawn, options, position, asked)

    return lambda state, progress: in_order(jobs(state, progress))


def options_at(job: Job, progress: float) -> dict[str, Any]:
    """What an objective is asked with when a run has come so far."""
    return {name: _at(value, progress) for name, value in job.options.items()}


def _at(value: Any, progress: float) -> Any:
    """A number that may move in a straight line through the run.

    >>> _at("0.3-0.1", 0.5), _at(0.15, 0.5)
    (0.2, 0.15)
    """
    if not isinstance(value, str) or "-" not in value[1:]:
        return value
    first, last = map(float, value.split("-"))
    return first + (last - first) * progress


def first_batch(job: Job, sampler: Sampler, tokenizer: Tokenizer) -> Batch:
    """A small batch: what the vocabulary, the text or an option lacks is said at once."""
    row, length = OBJECTIVES[job.objective], Stages.parse(job.settings.length).sizes[0]
    try:
        options = options_at(job, 0.0)
        drawn, _ = row.draw(sampler, Position(), length=length, tokens=4 * length, **options)
        return row.build(sampler, drawn, tokenizer.vocabulary, length=length, **options)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"objective.{name}={value}" for name, value in job.options.items())
        raise Misuse(f"{job.objective!r} cannot be asked with {given} ({error}).") from error


def validation_batches(job: Job, shards: Shards, tokenizer: Tokenizer) -> list[Batch]:
    """The same text at every validation, hidden in the same places.

    Masks are those of the paper, whatever share a run hides while it learns: figures of different
    runs can be compared.
    """
    row, settings = OBJECTIVES[job.objective], job.settings
    length = Stages.parse(settings.length).largest
    sampler, batches, position = Sampler(shards, VALIDATION_SEED), [], Position()
    tokens = min(settings.validate_tokens, max(shards.tokens, 4 * length))
    size = max(length, min(tokens, 8192))
    for begin in range(0, tokens, size):
        some = max(length, min(size, tokens - begin))  # no text twice, if there is enough
        drawn, position = row.draw(sampler, position, length=length, tokens=some)
        batches.append(row.build(sampler, drawn, tokenizer.vocabulary, length=length))
    return [batch for batch in batches if len(batch.output.tokens)]


def frequencies(shards: Shards, vocabulary: int) -> Longs:
    """How often each token occurs in (the beginning of) a text."""
    counts, seen = np.zeros(vocabulary, dtype=np.int64), 0
    for document in range(len(shards)):
        tokens = shards[document]
        counts += np.bincount(tokens, minlength=vocabulary)
        seen += len(tokens)
        if seen > COUNTED:
            break
    return counts
