"""Example predictions of a model, shown during training."""

from __future__ import annotations

from collections.abc import Sequence

from firth.inference.generation.text_generation import generate_text
from firth.inference.infilling.mask_filling import fill
from firth.models.language_model import LanguageNetwork
from firth.tokenizers.tokenizer import Tokenizer

PROMPT_WORDS = 8  # for a decoder
CONTEXT_WORDS = 16  # around a blank
MAX_NEW_TOKENS = 24


def samples(network: LanguageNetwork, tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Return each text with a prediction in «»: a filled blank, a completion or a filled span."""
    architectures = {"encoder": _fill, "decoder": _complete, "encoder-decoder": _fill_span}
    predict = architectures[network.config.architecture]
    lines = (predict(network, tokenizer, text) for text in texts)
    return [line for line in lines if line is not None]


def _fill(network: LanguageNetwork, tokenizer: Tokenizer, text: str) -> str | None:
    """Mask the middle word and show the model's three best guesses."""
    words = text.split()[:CONTEXT_WORDS]
    mask = tokenizer.special_tokens.get("mask")
    if len(words) < 3 or mask is None or "language" not in network.heads:
        return None
    middle = len(words) // 2
    before, hidden, after = words[:middle], words[middle], words[middle + 1 :]
    guesses = fill(network, tokenizer, " ".join([*before, mask, *after]), top=3)[0]
    shown = " ".join(f"{guess.token} {guess.score:.0%}" for guess in guesses)
    return f"{' '.join(before)} «{shown}» {' '.join(after)}   [{hidden}]"


def _complete(network: LanguageNetwork, tokenizer: Tokenizer, text: str) -> str:
    """Complete the first words."""
    prompt = " ".join(text.split()[:PROMPT_WORDS])
    completion = generate_text(network, tokenizer, prompt, max_new_tokens=MAX_NEW_TOKENS)
    return f"{prompt} «{completion}»"


def _fill_span(network: LanguageNetwork, tokenizer: Tokenizer, text: str) -> str | None:
    """Remove two words and show what the decoder generates for them."""
    words = text.split()[:CONTEXT_WORDS]
    blank = tokenizer.special_tokens.get("mask")
    if tokenizer.sentinel_ids:
        blank = tokenizer.backend.id_to_token(tokenizer.sentinel_ids[0])
    if len(words) < 5 or blank is None:
        return None
    middle = len(words) // 2
    hidden = words[middle : middle + 2]
    corrupted = " ".join([*words[:middle], blank, *words[middle + 2 :]])
    filled = generate_text(network, tokenizer, corrupted, max_new_tokens=MAX_NEW_TOKENS)
    return f"{corrupted} «{filled}»   [{' '.join(hidden)}]"
