"""Show what each pre-training objective makes of some text."""

from __future__ import annotations

import os
from collections.abc import Sequence

from firth.data.shards import Shards
from firth.embedded import HOME
from firth.formats.tokenizers.loading import AnyTokenizer, holds_tokenizer, load_tokenizer
from firth.objectives.preview import ObjectivePreview, preview_shards, preview_text, word_tokenizer
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.arguments import check_arguments
from firth.utils.errors import InputError, UsageError

EMBEDDED = "stories-encoder"  # whose tokenizer is the default
WORDS = "words"  # as tokenizer: every word is one token
LENGTH = 32  # tokens, of examples from shards


@check_arguments
def show_objectives(
    data: Shards | str,
    names: Sequence[str] = (),
    *,
    tokenizer: AnyTokenizer | None = None,
    mask_prob: float | None = None,
    length: int | None = None,
    seed: int = 0,
) -> tuple[list[ObjectivePreview], dict[str, str]]:
    """Return examples of the objectives, and for the others the reason they cannot be shown.

    `data` are shards (one example of `length` tokens, default 32) or a text. A text is tokenized by
    `tokenizer` (a model or its path, or "words"), by default that of the embedded model
    `stories-encoder` or, for a text with characters that it lacks, into words. `mask_prob` is the
    fraction of tokens that are masked, or removed in denoising objectives.

    >>> (example,), _ = show_objectives("The quick brown fox jumps", ["causal"], tokenizer="words")
    >>> example.predicts
    {'causal': ['The', 'quick', 'brown', 'fox', 'jumps', '[SEP]']}
    """
    if mask_prob is not None and not 0 < mask_prob <= 1:
        raise UsageError(f"`mask_prob` must be above 0 and at most 1, not {mask_prob}.")
    if isinstance(data, Shards):
        if tokenizer is not None:
            raise UsageError("Shards have a tokenizer: omit `tokenizer`.")
        return preview_shards(data, names, length=length or LENGTH, mask_prob=mask_prob, seed=seed)
    if length is not None:
        raise UsageError("`length` is for examples from shards; a text is shown as a whole.")
    if not isinstance(data, str) or not data.strip():
        raise InputError(f"The text is empty or no text: {data!r:.80}; give at least one word.")
    own = _tokenizer_of(data, tokenizer)
    return preview_text(data, own, names, mask_prob=mask_prob, seed=seed)


def _tokenizer_of(text: str, tokenizer: AnyTokenizer | None) -> Tokenizer:
    if tokenizer == WORDS and not os.path.exists(WORDS):
        return word_tokenizer(text)
    if tokenizer is not None:
        return load_tokenizer(tokenizer)
    folder = HOME / EMBEDDED
    if holds_tokenizer(folder):
        own = load_tokenizer(folder)
        if all(piece.known for piece in own.pieces(text)):
            return own
    return word_tokenizer(text)
