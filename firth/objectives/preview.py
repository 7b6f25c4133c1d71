"""Examples of the objectives: inputs and targets as token strings, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firth.data.sampler import Sampler, SamplerPosition
from firth.data.shards import Shards
from firth.objectives.batch import Batch
from firth.objectives.registry import OBJECTIVES
from firth.objectives.replaced import replaced
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError, UsageError
from firth.utils.rng import Longs

ANSWERS = {
    "next sentence": ("follows", "does not follow"),
    "sentence order": ("kept", "swapped"),
    "replaced": ("·", "replaced"),
}


@dataclass(frozen=True)
class PreviewToken:
    """An input token and its role."""

    token: str
    role: str  # text, special, hidden, changed, kept, prefix


@dataclass(frozen=True)
class ObjectivePreview:
    """One example of an objective: its input tokens and its targets."""

    objective: str
    reads: list[PreviewToken]
    predicts: dict[str, list[str]]


def show_objectives(
    shards: Shards, names: Sequence[str] = (), *, length: int = 32, seed: int = 0
) -> tuple[list[ObjectivePreview], dict[str, str]]:
    """Return one example of each objective, and for the others the reason they cannot be shown."""
    for name in names:
        if name not in OBJECTIVES:
            raise UsageError(f"Unknown objective {name!r}; choose one of {', '.join(OBJECTIVES)}.")
    tokenizer = Tokenizer.load(shards.path)
    sampler = Sampler(shards, seed)
    examples, reasons = [], {}
    for name in names or OBJECTIVES:
        objective = OBJECTIVES[name]
        try:
            drawn, _ = objective.draw(sampler, SamplerPosition(), length=length, tokens=4 * length)
            batch = objective.build(sampler, drawn, tokenizer.vocabulary, length=length)
            if not len(batch.inputs.keys):
                raise UsageError(f"No document is long enough for a length of {length}.")
        except (UsageError, InputError) as error:  # for example a tokenizer without [MASK]
            if names:
                raise
            reasons[name] = str(error)
            continue
        if "replaced" in objective.predicts:
            batch = _replace_without_generator(batch, tokenizer)
        examples.append(_example(name, batch, tokenizer))
    return examples, reasons


def _replace_without_generator(hidden: Batch, tokenizer: Tokenizer) -> Batch:
    """Build ELECTRA's detection batch; instead of a generator, permute the masked tokens."""
    prediction = hidden.predictions["masked"]
    tokens = hidden.inputs.tokens.copy()
    tokens[prediction.positions] = prediction.targets
    original = hidden.inputs.with_tokens(tokens)
    samples = np.roll(tokens[prediction.positions], 1)
    return replaced(original, tokenizer.vocabulary, hidden, samples)


def _example(name: str, batch: Batch, tokenizer: Tokenizer) -> ObjectivePreview:
    """Show the longest sequence of a batch as token strings."""
    row = int(np.argmax(batch.inputs.lengths))
    reads = _reads(batch, row, tokenizer)
    start, end = batch.output.starts[row : row + 2]
    predicts = {}
    for what, prediction in batch.predictions.items():
        inside = (prediction.positions >= start) & (prediction.positions < end)
        targets = prediction.targets[inside].tolist()
        answers = ANSWERS.get(what)
        spelt = [answers[t] for t in targets] if answers else _tokens(tokenizer, targets)
        if spelt:
            predicts[what] = spelt
    return ObjectivePreview(name, reads, predicts)


def _reads(batch: Batch, row: int, tokenizer: Tokenizer) -> list[PreviewToken]:
    start, end = (int(bound) for bound in batch.inputs.starts[row : row + 2])
    tokens = batch.inputs.tokens[start:end]
    roles = np.full(len(tokens), "text", dtype=object)
    prefix = int(batch.prefix[row])
    if 0 < prefix < len(tokens):
        roles[:prefix] = "prefix"
    vocabulary = tokenizer.vocabulary
    roles[vocabulary.special[tokens]] = "special"
    _mark_hidden(batch, start, tokens, roles)
    hiding = [vocabulary.ids.get("mask", -1), *vocabulary.sentinels]
    roles[np.isin(tokens, hiding)] = "hidden"
    return [PreviewToken(t, str(r)) for t, r in zip(_tokens(tokenizer, tokens), roles, strict=True)]


def _mark_hidden(batch: Batch, start: int, tokens: Longs, roles: Any) -> None:
    """Mark selected tokens that were replaced by another token, or kept."""
    if "replaced" in batch.predictions:
        detection = batch.predictions["replaced"]
        wrong = detection.positions[detection.targets == 1] - start
        roles[wrong[(wrong >= 0) & (wrong < len(tokens))]] = "changed"
    prediction = batch.predictions.get("masked")
    if prediction is None or "causal" in batch.predictions:
        return
    here = (prediction.positions >= start) & (prediction.positions < start + len(tokens))
    places = prediction.positions[here] - start
    same = tokens[places] == prediction.targets[here]
    roles[places] = np.where(same, "kept", "changed")


def _tokens(tokenizer: Tokenizer, ids: Any) -> list[str]:
    return [tokenizer.backend.id_to_token(int(id)) or "" for id in ids]
