"""Settings of the study of masking, and the ways of masking that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from firth.study.masking_findings import SPANS, STATIC, WORDS, percent
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

REFERENCE_PROB = 0.15
UNITS = {WORDS: "masked-words", SPANS: "masked-spans"}


@dataclass(frozen=True, kw_only=True)
class MaskingSettings:
    """Settings of the study."""

    mask_probs: Annotated[
        tuple[float, ...], Doc("Fractions of masked tokens; 0.15 is the reference.", min=0)
    ] = (0.05, 0.15, 0.3, 0.5, 0.8)
    replacements: Annotated[
        tuple[str, ...],
        Doc("Percentages of selected tokens that become the mask token, a random token, or stay."),
    ] = ("100/0/0", "80/20/0", "80/0/20")
    others: Annotated[
        tuple[str, ...], Doc("Other ways of masking: whole words, spans, static.")
    ] = (
        WORDS,
        SPANS,
        STATIC,
    )
    tokens: Annotated[int, Doc("Tokens of each pre-training run.", min=1)] = 80_000
    words: Annotated[
        int,
        Doc(
            "Words of the stories, unless --text is given; few, so that the runs repeat them.",
            min=1,
        ),
    ] = 15_000
    start_tokens: Annotated[
        int, Doc("Tokens of a common start of all runs; 0: random weights.", min=0)
    ] = 800_000
    start_words: Annotated[int, Doc("Words of the stories of the common start.", min=1)] = 300_000
    start_mask_prob: Annotated[
        str, Doc("Mask probability of the common start, which passes all that are compared.")
    ] = "0.8-0.05"
    hidden_size: Annotated[int, Doc("Hidden size.", min=1)] = 64
    num_layers: Annotated[int, Doc("Number of layers.", min=1)] = 2
    max_length: Annotated[int, Doc("Maximum sequence length in tokens.", min=1)] = 64
    batch_tokens: Annotated[int, Doc("Tokens per optimizer step of pre-training.", min=1)] = 1024
    vocab_size: Annotated[int, Doc("Vocabulary size of the tokenizer.", min=1)] = 500
    documents: Annotated[int, Doc("Documents for validation.", min=1)] = 50
    labels: Annotated[int, Doc("Labelled examples for fine-tuning; 0: no fine-tuning.", min=0)] = (
        100
    )
    test_size: Annotated[int, Doc("Maximum number of test examples.", min=1)] = 300

    def __post_init__(self) -> None:
        if REFERENCE_PROB not in self.mask_probs:
            raise UsageError("mask_probs must have 0.15, with which the others are compared.")
        for text in self.replacements:
            _fractions(text)
        if unknown := set(self.others) - {*UNITS, STATIC}:
            raise UsageError(f"others are of {', '.join((*UNITS, STATIC))}, not {unknown.pop()!r}.")


def _fractions(replacement: str) -> dict[str, float]:
    """Convert percentages of [MASK], random and unchanged tokens to options.

    >>> _fractions("80/20/0")
    {'keep_prob': 0.0, 'random_prob': 0.2}
    """
    parts = replacement.split("/")
    if len(parts) != 3 or not all(part.isdigit() for part in parts) or sum(map(int, parts)) != 100:
        raise UsageError(f"A replacement has three percentages such as 80/10/10, not {parts}.")
    return {"keep_prob": int(parts[2]) / 100, "random_prob": int(parts[1]) / 100}


Variant = tuple[str, Mapping[str, Any]]  # objective, options


def variants(settings: MaskingSettings) -> dict[str, Variant]:
    """Return the ways of masking that are compared, the reference among them."""
    plain = {"mask_prob": REFERENCE_PROB}
    found: dict[str, Variant] = {
        percent(prob): ("masked", {"mask_prob": prob}) for prob in settings.mask_probs
    }
    for text in settings.replacements:
        found[text] = ("masked", {**plain, **_fractions(text)})
    for name in settings.others:
        found[name] = (
            ("masked", {**plain, "static": True}) if name == STATIC else (UNITS[name], plain)
        )
    return found
