"""A few things a model says, so that a person sees it learn."""

from __future__ import annotations

from collections.abc import Sequence

from firth.inference.completions import continue_text
from firth.inference.fill import fill
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer

WORDS = 8  # of a text that a decoder is given
SHOWN = 16  # words around a blank
WRITTEN = 24  # tokens


def samples(network: Transformer, tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Each text with a blank filled, a beginning continued or a hole mended, in «»."""
    say = {"encoder": _filled, "decoder": _continued, "encoder-decoder": _mended}
    return [
        said
        for text in texts
        if (said := say[network.config.architecture](network, tokenizer, text)) is not None
    ]


def _filled(network: Transformer, tokenizer: Tokenizer, text: str) -> str | None:
    words = text.split()[:SHOWN]
    mask = tokenizer.special_tokens.get("mask")
    if len(words) < 3 or mask is None or "language" not in network.heads:
        return None
    middle = len(words) // 2
    before, hidden, after = words[:middle], words[middle], words[middle + 1 :]
    guesses = fill(network, tokenizer, " ".join([*before, mask, *after]), top=3)[0]
    likely = " ".join(f"{guess.token} {guess.score:.0%}" for guess in guesses)
    return f"{' '.join(before)} «{likely}» {' '.join(after)}   [{hidden}]"


def _continued(network: Transformer, tokenizer: Tokenizer, text: str) -> str:
    begun = " ".join(text.split()[:WORDS])
    return f"{begun} «{continue_text(network, tokenizer, begun, most=WRITTEN)}»"


def _mended(network: Transformer, tokenizer: Tokenizer, text: str) -> str | None:
    """A passage with two words taken out, and what stands in their places."""
    words = text.split()[:SHOWN]
    hole = tokenizer.special_tokens.get("mask")
    if tokenizer.sentinel_ids:
        hole = tokenizer.backend.id_to_token(tokenizer.sentinel_ids[0])
    if len(words) < 5 or hole is None:
        return None
    middle = len(words) // 2
    hidden = words[middle : middle + 2]
    damaged = " ".join([*words[:middle], hole, *words[middle + 2 :]])
    mended = continue_text(network, tokenizer, damaged, most=WRITTEN)
    return f"{damaged} «{mended}»   [{' '.join(hidden)}]"
