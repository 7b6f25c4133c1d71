"""What only the page shows: attention, objectives on a text, prompting and beam search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from firth.inspection.input_text import fit_text, model_input
from firth.inspection.text_attention import CAPTION, text_attention
from firth.jobs.objective_examples import WORDS, show_objectives
from firth.jobs.prompting import prompt
from firth.model import Model
from firth.objectives.preview import ObjectivePreview, PreviewToken
from firth.objectives.registry import OBJECTIVES
from firth.tokenizers.display import decode_byte_level, show_white_space
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.attention_view import part_values

MAX_ATTENTION_TOKENS = 512


def attention_values(model: Model, text: str, target: str | None) -> dict[str, Any]:
    """Compute the attention of every head over a text; long texts are cut, with a note."""
    fitted, note = fit_text(model, text)
    read = model_input(model, fitted, target)
    if max(len(read.ids), len(read.target_ids)) > MAX_ATTENTION_TOKENS:
        note += f" The attention of the first {MAX_ATTENTION_TOKENS} tokens is shown."
    found = text_attention(model, read.first(MAX_ATTENTION_TOKENS))
    caption = f"{CAPTION}{found.limits} {note}".strip()
    return {"parts": part_values(found.parts), "caption": caption}


def masking_values(
    text: str,
    tokenizer: Tokenizer | None,
    *,
    objectives: tuple[str, ...],
    mask_prob: float | None,
    seed: int,
) -> dict[str, Any]:
    """Show each objective on a text; without a tokenizer every word is one token.

    >>> shown = masking_values("A fox jumps.", None, objectives=(), mask_prob=None, seed=0)
    >>> shown["examples"][0]["objective"], shown["about"]["causal"]["source"]
    ('masked', 'GPT, Radford et al. 2018')
    """
    examples, missing = show_objectives(
        text,
        objectives,
        tokenizer=WORDS if tokenizer is None else tokenizer,
        mask_prob=mask_prob,
        seed=seed,
    )
    about = {
        name: {"text": f"{row.about[:1].upper()}{row.about[1:]}. {row.details}"}
        | {"source": row.source}
        for name, row in OBJECTIVES.items()
    }
    return {
        "examples": [_example_values(example) for example in examples],
        "missing": missing,
        "about": about,
    }


def _example_values(example: ObjectivePreview) -> dict[str, Any]:
    """Return an example as JSON values, with readable tokens."""

    def token_values(tokens: Sequence[PreviewToken]) -> list[dict[str, str]]:
        return [
            {"token": readable_token(example.kind, one.token), "role": one.role} for one in tokens
        ]

    predicts = {
        what: [readable_token(example.kind, target) for target in targets]
        for what, targets in example.predicts.items()
    }
    return asdict(example) | {
        "reads": token_values(example.reads),
        "decoder": token_values(example.decoder),
        "predicts": predicts,
    }


def readable_token(kind: str, token: str) -> str:
    """Decode a token of a byte-level vocabulary; other targets, such as labels, stay.

    >>> readable_token("bpe", "ĠÃ©tÃ©"), readable_token("bpe", "does not follow")
    ('·été', 'does not follow')
    """
    if kind != "bpe" or " " in token:
        return token
    return show_white_space(decode_byte_level(token))


def prompt_values(model: Model, query: str, **settings: Any) -> dict[str, Any]:
    """Answer a query after demonstrations, as `firth prompt` does."""
    return prompt(model, query, progress=_no_progress, **settings).values()


def beam_values(model: Model, text: str, *, max_tokens: int, beams: int) -> dict[str, Any]:
    """Complete a prompt by beam search."""
    generator = model.text_generator(method="beam", beams=beams, max_new_tokens=max_tokens)
    [done] = generator.complete_encoded([(0, generator.encode_prompt(text))])
    best = done.completions[0]
    ends = {"end": "stop"}  # as in the OpenAI API
    return {
        "text": best.text,
        "tokens": len(best.tokens),
        "logprob": best.logprob,
        "finish_reason": ends.get(best.finish_reason, best.finish_reason),
    }


def _no_progress(what: str, done: int, total: int) -> None:
    """Show nothing: a server has no terminal."""
