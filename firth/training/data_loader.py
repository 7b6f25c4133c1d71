"""Training batches in order, validation batches, and token counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from firth.data.sampler import Sampler, SamplerPosition, in_order
from firth.data.shards import Shards
from firth.objectives.batch import Batch
from firth.objectives.registry import OBJECTIVES
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.pretrain_config import PretrainRunConfig
from firth.training.schedule import StagedValue
from firth.training.state import PlannedBatch, TrainingState
from firth.utils.errors import InputError, UsageError
from firth.utils.rng import Longs

MAX_COUNTED = 4_000_000  # tokens
VALIDATION_SEED = 1


def training_sampler(config: PretrainRunConfig, shards: Shards) -> Sampler:
    """Return the sampler of a run's training text."""
    training = config.training
    return Sampler(shards, training.seed, config.mixture, full_sentences=training.full_sentences)


def batch_planner(
    config: PretrainRunConfig, sampler: Sampler, tokenizer: Tokenizer
) -> Callable[[TrainingState, Callable[[TrainingState], float]], Iterator[PlannedBatch]]:
    """Return a function that yields the batches from a state on; some are built ahead of use."""
    row, training, vocabulary = OBJECTIVES[config.objective], config.training, tokenizer.vocabulary
    lengths, sizes = (
        StagedValue.parse(training.max_length),
        StagedValue.parse(training.batch_tokens),
    )

    def make(
        drawn: Any, options: dict[str, Any], next_position: SamplerPosition, planned_tokens: int
    ) -> PlannedBatch:
        batch = row.build(sampler, drawn, vocabulary, **options)
        return PlannedBatch(batch, next_position, planned_tokens)

    def tasks(
        state: TrainingState, progress: Callable[[TrainingState], float]
    ) -> Iterator[Callable[[], PlannedBatch]]:
        step, position, planned = state.step, state.position, state.planned_tokens
        while True:
            size = sizes.at(progress(replace(state, step=step, planned_tokens=planned)))
            now = progress(replace(state, step=step + 1, planned_tokens=planned + size))
            length, size = lengths.at(now), sizes.at(now)
            options = config.options_at(now)
            options["length"] = length
            drawn, position = row.draw(sampler, position, tokens=size, **options)
            step, planned = step + 1, planned + size
            yield partial(make, drawn, options, position, planned)

    return lambda state, progress: in_order(tasks(state, progress))


def first_batch(config: PretrainRunConfig, sampler: Sampler, tokenizer: Tokenizer) -> Batch:
    """Build a small batch, to report wrong options or a missing special token before training."""
    length = StagedValue.parse(config.training.max_length).sizes[0]
    return _build_batch(config, sampler, tokenizer, length, 4 * length)


def largest_batch(config: PretrainRunConfig, sampler: Sampler, tokenizer: Tokenizer) -> Batch:
    """Build a batch with the largest `batch_tokens` and `max_length` of the run."""
    sizes = config.training.max_length, config.training.batch_tokens
    length, tokens = (StagedValue.parse(stages).largest for stages in sizes)
    return _build_batch(config, sampler, tokenizer, length, tokens)


def _build_batch(
    config: PretrainRunConfig, sampler: Sampler, tokenizer: Tokenizer, length: int, tokens: int
) -> Batch:
    row = OBJECTIVES[config.objective]
    try:
        options = config.options_at(0.0)
        drawn, _ = row.draw(sampler, SamplerPosition(), length=length, tokens=tokens, **options)
        return row.build(sampler, drawn, tokenizer.vocabulary, length=length, **options)
    except (TypeError, ValueError) as error:
        given = ", ".join(
            f"objective.{name}={value}" for name, value in config.objective_options.items()
        )
        raise UsageError(
            f"The objective {config.objective!r} does not accept {given} ({error})."
        ) from error


def validation_batches(
    config: PretrainRunConfig, shards: Shards, tokenizer: Tokenizer, source: str | None = None
) -> list[Batch]:
    """Build the validation batches: the same text with the same masks at every validation.

    They use the objective's default options, so that metrics of different runs are comparable. With
    a source, they have its text alone.
    """
    row, training = OBJECTIVES[config.objective], config.training
    make_sampler = partial(Sampler, shards, full_sentences=training.full_sentences)
    build, length = row.validate or row.build, StagedValue.parse(training.max_length).largest
    sampler, batches, position = make_sampler(VALIDATION_SEED), [], SamplerPosition()
    limit, available = training.validate_tokens, shards.tokens
    if source is not None:
        sampler = make_sampler(VALIDATION_SEED, {source: 1.0})
        limit, available = limit // len(shards.source_names), shards.source_tokens[source]
    tokens = min(limit, max(available, 4 * length))
    size = max(length, min(tokens, 8192))
    for begin in range(0, tokens, size):
        count = max(length, min(size, tokens - begin))  # no text twice, if there is enough
        drawn, position = row.draw(sampler, position, length=length, tokens=count)
        batches.append(build(sampler, drawn, tokenizer.vocabulary, length=length))
    return [batch for batch in batches if len(batch.output.tokens)]


def source_validation_batches(
    config: PretrainRunConfig, shards: Shards, tokenizer: Tokenizer
) -> dict[str, list[Batch]]:
    """Build the validation batches of each source that has enough text."""
    batches = {}
    for name, tokens in shards.source_tokens.items():
        with suppress(InputError):  # pairs of sentences need two documents
            batches[name] = validation_batches(config, shards, tokenizer, name) if tokens else []
    return {name: some for name, some in batches.items() if some}


def count_tokens(shards: Shards, vocab_size: int, documents: Iterable[int]) -> Longs:
    """Count each token in (the first of) these documents."""
    counts, seen = np.zeros(vocab_size, dtype=np.int64), 0
    for document in documents:
        tokens = shards[document]
        counts += np.bincount(tokens, minlength=vocab_size)
        seen += len(tokens)
        if seen > MAX_COUNTED:
            break
    return counts
