"""Text generation for prompts in memory or in a file, with one or several strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, overload

from firth.data.memory import Data
from firth.inference.generation.generation_config import (
    DEFAULT_BEAMS,
    GenerationConfig,
    GenerationOptions,
    one_completion,
)
from firth.inference.generation.text_generation import (
    MAX_BATCH_SIZE,
    Completion,
    PromptCompletions,
    TextGenerator,
    first_texts,
)
from firth.jobs.row_streams import (
    EncodedText,
    answer_rows,
    encoded_texts,
    read_texts,
)
from firth.jobs.text_inputs import CompletionOptions
from firth.model import AnyModel, load_if_needed
from firth.tasks.readers.columns import PROMPT_TEXT, find_source
from firth.utils.arguments import check_arguments
from firth.utils.bad_rows import BadRows, answer_good_rows
from firth.utils.devices import Device, Dtype, restored_torch_state
from firth.utils.errors import InputError

# The course's temperatures, and the two deterministic strategies.
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "temperature 0.5": {"method": "sample", "temperature": 0.5},
    "temperature 1.0": {"method": "sample", "temperature": 1.0},
    "temperature 2.0": {"method": "sample", "temperature": 2.0},
    f"{DEFAULT_BEAMS} beams": {"method": "beam", "beams": DEFAULT_BEAMS},
}


@overload
def generate(  # type: ignore[overload-overlap]
    model: AnyModel, prompts: str, **options: Unpack[CompletionOptions]
) -> str: ...


@overload
def generate(
    model: AnyModel, prompts: Data, **options: Unpack[CompletionOptions]
) -> list[str | None]: ...


@check_arguments
@restored_torch_state()
def generate(
    model: AnyModel,
    prompts: Data,
    *,
    method: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    no_repeat_ngram: int | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    early_stopping: bool | str | None = None,
    n: int | None = None,
    stop: Sequence[str] | str | None = None,
    seed: int | None = None,
    column: str | None = None,
    format: str | None = None,
    strict: bool = False,
    dtype: Dtype = None,
    weights: str | None = None,
    device: Device = None,
) -> str | list[str | None]:
    """Generate the completion of a prompt, without the prompt; a list for several prompts.

    `prompts` is a text, a list or Series of texts, a table with a text `column`, or a `Path`. The
    completion of a bad row is None, and its error is logged; with `strict`, it is raised. Decoding
    options that are None have the defaults of `GenerationConfig`; `Model.completions` returns all
    `n` completions, with tokens and scores.
    """
    config: GenerationOptions = {
        "method": method,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram": no_repeat_ngram,
        "beams": beams,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "n": n,
        "stop": stop,
        "seed": seed,
    }
    GenerationConfig.of(config)  # usage errors come before the model is loaded
    one_completion(config)
    loaded = load_if_needed(model, device, dtype=dtype, weights=weights)
    generator = loaded.text_generator(**config)
    rows = read_texts(prompts, "prompts", column, format, generator.encode_prompt, PROMPT_TEXT)

    def answer(rows: list[EncodedText]) -> list[str]:
        return first_texts(generator.complete_encoded([(row.number, row.encoded) for row in rows]))

    found = answer_good_rows(rows, answer, strict=strict)
    return found[0] if isinstance(prompts, str) else found


def complete_file(
    generator: TextGenerator,
    file: str | Path,
    *,
    column: str | None = None,
    format: str | None = None,
    bad: BadRows,
) -> Iterator[PromptCompletions | InputError]:
    """Complete the prompts of a file in their order: its lines, or a table's column.

    Errors of single rows are also passed to `bad`, and the stream continues.
    """
    source = find_source(file, format, "txt")

    def complete(rows: list[EncodedText]) -> Iterator[PromptCompletions]:
        return generator.complete_encoded([(row.number, row.encoded) for row in rows])

    found = answer_rows(
        partial(encoded_texts, source, PROMPT_TEXT, column, generator.encode_prompt),
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
