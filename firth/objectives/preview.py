"""Examples of the objectives: inputs and targets as token strings, without a model.

The text comes from shards, or is one short text. The batches are those of pre-training.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from firth.data.sampler import Sampler, SamplerPosition
from firth.data.shards import MemoryShards, Shards
from firth.objectives.batch import Batch
from firth.objectives.registry import OBJECTIVES, Objective
from firth.objectives.replaced import replaced
from firth.tokenizers.encoding import CachedEncoder, encode_documents
from firth.tokenizers.tokenizer import SENTINEL, Tokenizer
from firth.utils.errors import InputError, UsageError
from firth.utils.rng import Longs, derive_keys, uniform

ANSWERS = {
    "next sentence": ("follows", "does not follow"),
    "sentence order": ("kept", "swapped"),
    "replaced": ("original", "replaced"),
}
# What may happen to a token that was selected for masking (Devlin et al. 2019, section 3.1).
OUTCOMES: dict[str, dict[str, float]] = {
    "80 %: the mask token": {"keep_prob": 0.0, "random_prob": 0.0},
    "10 %: a random token": {"keep_prob": 0.0, "random_prob": 1.0},
    "10 %: unchanged": {"keep_prob": 1.0, "random_prob": 0.0},
}
OTHER_TEXT = "Cats like fish."  # the second sentence of a pair that does not follow the first
DRAWS = 16  # of one text, in search of an example in which a token is hidden
SENTINELS = [SENTINEL.format(i) for i in reversed(range(100))]  # as in T5, the first comes last
SAMPLE = 60  # name of the random draw


@dataclass(frozen=True)
class PreviewToken:
    """An input token and its role."""

    token: str
    role: str  # text, special, hidden, changed, kept, prefix
    id: int = -1


@dataclass(frozen=True)
class ObjectivePreview:
    """One example of an objective: its input tokens and its targets."""

    objective: str
    reads: list[PreviewToken]  # the input; of the encoder, if there are two stacks
    predicts: dict[str, list[str]]  # targets by prediction
    positions: dict[str, list[int]]  # the position of each target in the input of the last stack
    decoder: list[PreviewToken] = field(default_factory=list)  # the decoder's input
    variant: str = ""  # which of the cases of the objective this is
    note: str = ""
    kind: str = ""  # of the tokenizer
    prefix: int = 0  # tokens at the beginning of a causal input that see each other


Previews = tuple[list[ObjectivePreview], dict[str, str]]  # examples; why others cannot be shown


def preview_shards(
    shards: Shards, names: Sequence[str], *, length: int, mask_prob: float | None, seed: int
) -> Previews:
    """Return one example of each objective, and for the others the reason they cannot be shown."""
    tokenizer = Tokenizer.load(shards.path)
    sampler = Sampler(shards, seed)

    def examples(name: str) -> list[ObjectivePreview]:
        options = {"length": length, **_fraction(OBJECTIVES[name], mask_prob)}
        batch, _ = _draw(name, sampler, SamplerPosition(), tokenizer, 4 * length, **options)
        return [_example(name, batch, int(np.argmax(batch.inputs.lengths)), tokenizer)]

    return _collect(names, examples)


def preview_text(
    text: str, tokenizer: Tokenizer, names: Sequence[str], *, mask_prob: float | None, seed: int
) -> Previews:
    """Return the examples of each objective on one text.

    Objectives with several cases, such as a second sentence that follows and one that does not,
    have an example of each. Masks are drawn until at least one token is hidden. Special tokens that
    the tokenizer lacks are added.
    """
    complete = _with_missing_tokens(tokenizer)
    alone, with_other = (_shards(texts, complete) for texts in ([text], [text, OTHER_TEXT]))
    length = int(with_other.lengths.sum()) + 4
    if not len(alone) or complete.vocabulary.special[alone[0]].all():
        raise InputError(
            "The tokenizer has no token for any word of this text; choose another tokenizer."
        )

    def examples(name: str) -> list[ObjectivePreview]:
        is_pair = "next sentence" in OBJECTIVES[name].predicts
        if (is_pair or "sentence order" in OBJECTIVES[name].predicts) and _is_single(alone):
            raise UsageError(
                'It needs two sentences, for example "The weather is nice. Let us go for a walk."'
            )
        sampler = Sampler(with_other if is_pair else alone, seed)
        fraction = _fraction(OBJECTIVES[name], mask_prob)
        found: list[ObjectivePreview] = []
        for variant, outcome in (OUTCOMES if name == "masked" else {"": {}}).items():
            options = {"length": length, **fraction, **outcome}
            drawn = _drawn_examples(name, sampler, complete, **options)
            found += _one_per_variant(drawn, variant)
        return [_with_note(example, tokenizer) for example in found]

    return _collect(names, examples)


def _collect(names: Sequence[str], examples: Any) -> Previews:
    """Collect the examples of some objectives, or of all that can be shown."""
    for name in names:
        if name not in OBJECTIVES:
            raise UsageError(f"Unknown objective {name!r}; choose one of {', '.join(OBJECTIVES)}.")
    found: list[ObjectivePreview] = []
    reasons = {}
    for name in names or OBJECTIVES:
        try:
            found += examples(name)
        except (UsageError, InputError) as error:  # for example a tokenizer without [MASK]
            if names:
                raise
            reasons[name] = str(error)
    return found, reasons


def _fraction(objective: Objective, mask_prob: float | None) -> dict[str, float]:
    """Return the option of an objective for the fraction of hidden tokens, if it has one."""
    parameters = inspect.signature(objective.predicted_fraction).parameters
    names = [name for name in ("mask_prob", "noise_density") if name in parameters]
    return {} if mask_prob is None else dict.fromkeys(names[:1], mask_prob)


def _draw(
    name: str,
    sampler: Sampler,
    position: SamplerPosition,
    tokenizer: Tokenizer,
    tokens: int,
    **options: Any,
) -> tuple[Batch, SamplerPosition]:
    """Draw a batch of an objective; return it and the next position."""
    objective = OBJECTIVES[name]
    drawn, position = objective.draw(sampler, position, tokens=tokens, **options)
    batch = objective.build(sampler, drawn, tokenizer.vocabulary, **options)
    if not len(batch.inputs.keys):
        raise UsageError("This objective needs a text of at least two tokens.")
    if "replaced" in objective.predicts:
        batch = _replace_without_generator(batch, tokenizer)
    return batch, position


def _replace_without_generator(hidden: Batch, tokenizer: Tokenizer) -> Batch:
    """Build ELECTRA's detection batch; random tokens of the text take the generator's place."""
    prediction = hidden.predictions["masked"]
    tokens = hidden.inputs.tokens.copy()
    tokens[prediction.positions] = prediction.targets
    original = hidden.inputs.with_tokens(tokens)
    others = np.unique(tokens[~tokenizer.vocabulary.special[tokens]])
    keys = original.keys[original.owners[prediction.positions]]
    draw = uniform(derive_keys(keys, original.offsets[prediction.positions]), SAMPLE)
    samples = others[(draw * len(others)).astype(np.int64)]
    return replaced(original, tokenizer.vocabulary, hidden, samples)


# ---- one text ---------------------------------------------------------------------------------


def word_tokenizer(text: str) -> Tokenizer:
    """Make a tokenizer whose tokens are the words and punctuation marks of one text.

    >>> [piece.token for piece in word_tokenizer("Hello, 中文!").pieces("Hello, 中文!")]
    ['Hello', ',', '中', '文', '!']
    """
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers

    splitter = pre_tokenizers.BertPreTokenizer()
    spaced = normalizers.BertNormalizer(lowercase=False, strip_accents=False)  # 中文 is two words
    both = spaced.normalize_str(f"{text} {OTHER_TEXT}")
    words = [word for word, _ in splitter.pre_tokenize_str(both)]
    roles = {role: f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    special = [*roles.values(), *SENTINELS]
    tokens = dict.fromkeys([*special, *words])
    ids = {token: id for id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=len(text) + 100)
    )
    backend.normalizer, backend.pre_tokenizer = spaced, splitter
    backend.add_special_tokens(special)
    return Tokenizer(backend, {f"{role}_token": token for role, token in roles.items()})


def _with_missing_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy with a mask, a first and a last token, and sentinels."""
    import tokenizers

    own = tokenizer.special_ids
    mask = "[MASK]" if tokenizer.kind == "wordpiece" else "<mask>"
    missing = {} if "mask" in own else {"mask": mask}
    missing |= {} if {"cls", "bos"} & own.keys() else {"bos": "<s>"}
    missing |= {} if {"sep", "eos"} & own.keys() else {"eos": "</s>"}
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    backend.add_special_tokens([*missing.values(), *([] if tokenizer.sentinel_ids else SENTINELS)])
    backend.encode_special_tokens = True  # `[MASK]` in the text is plain text, as in shards
    named = {f"{role}_token": token for role, token in missing.items()}
    return Tokenizer(backend, tokenizer.config | named)


def _shards(texts: Sequence[str], tokenizer: Tokenizer) -> MemoryShards:
    encoder = CachedEncoder(tokenizer.backend)
    return MemoryShards(encode_documents(encoder, [text.strip() for text in texts]), "this text")


def _is_single(shards: Shards) -> bool:
    return len(shards.sentences(0)) < 3  # the start of the sentence, and its end


def _drawn_examples(
    name: str, sampler: Sampler, tokenizer: Tokenizer, **options: Any
) -> Iterator[ObjectivePreview]:
    """Yield examples of one text: each epoch of the sampler has other random draws."""
    position = SamplerPosition()
    for _ in range(DRAWS):
        batch, position = _draw(
            name, sampler, position, tokenizer, tokens=options["length"], **options
        )
        yield _example(name, batch, 0, tokenizer)


def _one_per_variant(
    examples: Iterator[ObjectivePreview], variant: str
) -> Iterator[ObjectivePreview]:
    """Yield the first example of each case with a mask, else with a replaced token, else any."""
    chosen: dict[str, ObjectivePreview] = {}
    for example in examples:
        case = variant or example.variant
        if case not in chosen or _hides(example) > _hides(chosen[case]):
            chosen[case] = replace(example, variant=case)
    yield from chosen.values()


def _hides(example: ObjectivePreview) -> int:
    """Return 2 if a mask or sentinel hides a token, 1 if a token is replaced by another, or 0."""
    roles = {word.role for word in example.reads}
    return 2 if "hidden" in roles else int("changed" in roles)


def _with_note(example: ObjectivePreview, tokenizer: Tokenizer) -> ObjectivePreview:
    """Add what a reader must know: tokens that the tokenizer lacks, or that nothing is hidden."""
    shown = [word.token for word in example.reads + example.decoder if word.id >= len(tokenizer)]
    notes = []
    if shown:
        names = ", ".join(dict.fromkeys(shown))
        notes.append(f"The tokenizer has no {names}: added for this example.")
    if example.variant == "does not follow":
        notes.append(f"'{OTHER_TEXT}' is an example of a random sentence from another document.")
    hiding = {"masked", "replaced", "denoising"} & example.predicts.keys()
    if hiding and not _hides(example) and "unchanged" not in example.variant:
        notes.append("Nothing is hidden in so short a text at this fraction.")
    return replace(example, note=" ".join(notes))


# ---- from batches to token strings ------------------------------------------------------------


def _example(name: str, batch: Batch, row: int, tokenizer: Tokenizer) -> ObjectivePreview:
    """Show one sequence of a batch as token strings."""
    start, end = batch.output.starts[row : row + 2]
    predicts, positions = {}, {}
    for what, prediction in batch.predictions.items():
        inside = (prediction.positions >= start) & (prediction.positions < end)
        targets = prediction.targets[inside].tolist()
        answers = ANSWERS.get(what)
        spelt = [answers[t] for t in targets] if answers else _tokens(tokenizer, targets)
        if spelt:
            predicts[what] = spelt
            positions[what] = (prediction.positions[inside] - start).tolist()
    decoder = []
    if batch.target is not None:
        ids = batch.target.tokens[start:end]
        decoder = _preview_tokens(tokenizer, ids, np.full(len(ids), "text", dtype=object))
    reads = _reads(batch, row, tokenizer)
    variant = _variant(predicts, OBJECTIVES[name].predicts)
    return ObjectivePreview(
        name,
        reads,
        predicts,
        positions,
        decoder,
        variant,
        kind=tokenizer.kind,
        prefix=_prefix(batch, row),
    )


def _prefix(batch: Batch, row: int) -> int:
    """Return the length of a bidirectional prefix; 0 if the whole sequence is bidirectional."""
    prefix = int(batch.prefix[row])
    return prefix if prefix < batch.inputs.lengths[row] else 0


def _variant(predicts: dict[str, list[str]], possible: Sequence[str]) -> str:
    """Name the case of an example: the answer of a pair, or masked or causal."""
    for what in ("next sentence", "sentence order"):
        if what in predicts:
            return predicts[what][0]
    return next(iter(predicts), "") if "causal" in possible and len(possible) > 1 else ""


def _reads(batch: Batch, row: int, tokenizer: Tokenizer) -> list[PreviewToken]:
    start, end = (int(bound) for bound in batch.inputs.starts[row : row + 2])
    tokens = batch.inputs.tokens[start:end]
    roles = np.full(len(tokens), "text", dtype=object)
    roles[: _prefix(batch, row)] = "prefix"
    roles[tokenizer.vocabulary.special[tokens]] = "special"
    _mark_hidden(batch, start, tokens, roles)
    return _preview_tokens(tokenizer, tokens, roles)


def _preview_tokens(tokenizer: Tokenizer, ids: Longs, roles: Any) -> list[PreviewToken]:
    vocabulary = tokenizer.vocabulary
    hiding = [vocabulary.ids.get("mask", -1), *vocabulary.sentinels]
    roles = np.where(np.isin(ids, hiding), "hidden", roles)
    roles = np.where(vocabulary.special[ids] & (roles == "text"), "special", roles)
    triples = zip(_tokens(tokenizer, ids), roles, ids.tolist(), strict=True)
    return [PreviewToken(token, str(role), id) for token, role, id in triples]


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
