"""The routes that only the page needs: attention, masking, prompting and beam search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from firth.objectives.registry import OBJECTIVES
from firth.serve.admission import estimate_tokens
from firth.serve.api_errors import ApiError
from firth.serve.api_route import ApiRoute, ServerState, off_loop
from firth.serve.field_kinds import TEXT, integer, list_of, number, one_of
from firth.serve.playground.page_results import (
    attention_values,
    beam_values,
    masking_values,
    prompt_values,
)
from firth.serve.request_fields import RequestFields, parameter
from firth.serve.routes.task_routes import compute
from firth.serve.served_model import ServedModel

MAX_SEED = (1 << 31) - 1
MAX_BEAMS, MAX_NEW_TOKENS, MAX_EXAMPLES = 16, 1000, 200
MAX_CHARACTERS = 20_000  # of a text that is shown token by token
MAX_PROMPT_CHARACTERS = 200_000  # of a filled template
EXAMPLE = list_of(TEXT, "a pair of strings: a text and its answer", minimum=2, maximum=2)


@dataclass(frozen=True, kw_only=True)
class AttentionFields(RequestFields):
    """The parameters of `/playground/attention`."""

    text: str = parameter("Text to read.", TEXT)
    target: str | None = parameter("Output of an encoder-decoder; null: generated.", TEXT, None)


@dataclass(frozen=True, kw_only=True)
class MaskingFields(RequestFields):
    """The parameters of `/playground/masking`; without a model every word is one token."""

    text: str = parameter("Text to mask.", TEXT)
    objectives: Sequence[str] = parameter(
        "Names of objectives; empty: all.", list_of(TEXT, "a list of names", maximum=100), ()
    )
    mask_prob: float | None = parameter(
        "Fraction of tokens to hide; null: the objective's own.", number(minimum=0, maximum=1), None
    )
    seed: int = parameter("Random seed.", integer(minimum=0, maximum=MAX_SEED), 0)


@dataclass(frozen=True, kw_only=True)
class PromptFields(RequestFields):
    """The parameters of `/playground/prompt`, which are those of `firth prompt`."""

    query: str = parameter("Text to answer.", TEXT)
    task: str = parameter("Task.", one_of("classify", "seq2seq"), "seq2seq")
    labels: Sequence[str] = parameter(
        "Labels of classify.", list_of(TEXT, "a list of strings", maximum=MAX_EXAMPLES), ()
    )
    examples: Sequence[Sequence[str]] = parameter(
        "Demonstrations.", list_of(EXAMPLE, "a list of pairs of strings", maximum=MAX_EXAMPLES), ()
    )
    instruction: str = parameter("Instruction at the start of the prompt.", TEXT, "")
    template: str | None = parameter("Template of an example; null: the task's.", TEXT, None)
    max_new_tokens: int = parameter(
        "Maximum length of a generated answer.", integer(minimum=1, maximum=MAX_NEW_TOKENS), 32
    )


@dataclass(frozen=True, kw_only=True)
class BeamFields(RequestFields):
    """The parameters of `/playground/beam`."""

    prompt: str = parameter("Text to continue.", TEXT)
    max_tokens: int = parameter(
        "Maximum length in tokens.", integer(minimum=1, maximum=MAX_NEW_TOKENS), 40
    )
    beams: int = parameter("Beams.", integer(minimum=2, maximum=MAX_BEAMS), 4)


async def attention(state: ServerState, fields: AttentionFields) -> dict[str, Any]:
    """Compute the attention of every head over a text."""
    return await _run(state, "attention", _attention, fields, [fields.text, fields.target or ""])


def _attention(
    served: ServedModel, settings: None, requests: Sequence[AttentionFields]
) -> list[dict[str, Any]]:
    return [attention_values(served.model, one.text, one.target) for one in requests]


async def masking(state: ServerState, fields: MaskingFields) -> dict[str, Any]:
    """Show what each objective makes of a text; this needs a tokenizer, but no network."""
    tokenizer, admission = None, state.pool.admission
    if fields.model is not None:
        entry = state.pool.find(fields.model, "tokenize")
        tokenizer, admission = entry.served.tokenizer, entry.admission
    text, objectives = fields.text[:MAX_CHARACTERS], tuple(fields.objectives)

    def show() -> dict[str, Any]:
        return masking_values(
            text, tokenizer, objectives=objectives, mask_prob=fields.mask_prob, seed=fields.seed
        )

    with admission.reserve(estimate_tokens(text) * len(objectives or OBJECTIVES)):
        return await anyio.to_thread.run_sync(show)


async def prompt(state: ServerState, fields: PromptFields) -> dict[str, Any]:
    """Answer a text after demonstrations."""
    once = _longest_prompt(fields)
    # Every label is scored with the whole prompt, and with three prompts without content.
    texts = [once] * (4 * len(fields.labels) or 1)
    return await _run(state, "score", _prompt, fields, texts, fields.max_new_tokens)


def _longest_prompt(fields: PromptFields) -> str:
    """Return a text at least as long as the prompt with its longest label."""
    template = fields.template or ""
    texts = "\n".join([*map(" ".join, fields.examples), fields.query])
    rendered, copies = len(fields.examples) + 1, max(1, template.count("{"))
    if rendered * len(template) + copies * len(texts) > MAX_PROMPT_CHARACTERS:
        raise ApiError(
            413, f"The prompt is longer than {MAX_PROMPT_CHARACTERS:,} characters: shorten it."
        )
    label = max(fields.labels, key=len, default="")
    return "\n".join([fields.instruction, *[template] * rendered, *[texts] * copies, label])


def _prompt(
    served: ServedModel, settings: None, requests: Sequence[PromptFields]
) -> list[dict[str, Any]]:
    return [
        prompt_values(
            served.model,
            one.query,
            task=one.task,
            labels=one.labels or None,
            examples=[(text, answer) for text, answer in one.examples] or None,
            instruction=one.instruction,
            template=one.template,
            max_new_tokens=one.max_new_tokens,
        )
        for one in requests
    ]


async def beam(state: ServerState, fields: BeamFields) -> dict[str, Any]:
    """Continue a text by beam search."""
    texts = [fields.prompt] * fields.beams
    more = fields.max_tokens * fields.beams
    return await _run(state, "generate", _beam, fields, texts, more)


def _beam(
    served: ServedModel, settings: None, requests: Sequence[BeamFields]
) -> list[dict[str, Any]]:
    return [
        beam_values(served.model, one.prompt, max_tokens=one.max_tokens, beams=one.beams)
        for one in requests
    ]


async def _run(
    state: ServerState,
    capability: str,
    function: Any,
    fields: Any,
    texts: Sequence[str],
    more: int = 0,
) -> dict[str, Any]:
    """Compute one request through the queue of its model, which counts the tokens of `texts`."""
    entry = state.pool.find(fields.model, capability)
    encode = entry.served.tokenizer.encode
    lengths = {text: len(await off_loop(len(text), encode, text)) for text in set(texts)}
    longest = entry.served.max_input_tokens  # longer texts are cut
    size = 1 + more + sum(min(lengths[text], longest) for text in texts)
    [found] = await compute(entry, function, None, [fields], [size])
    return found


ROUTES = (
    ApiRoute(
        "POST", "/playground/attention", "Attention weights of a text.", attention, AttentionFields
    ),
    ApiRoute(
        "POST", "/playground/masking", "Pre-training objectives on a text.", masking, MaskingFields
    ),
    ApiRoute("POST", "/playground/prompt", "Zero- and few-shot answers.", prompt, PromptFields),
    ApiRoute("POST", "/playground/beam", "A completion by beam search.", beam, BeamFields),
)
