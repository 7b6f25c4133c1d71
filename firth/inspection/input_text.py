"""Texts as a model reads them: its own marks of blanks, cut to its context, as token ids."""

from __future__ import annotations

from firth.data.cleaning import is_invisible
from firth.inference.infilling.blanks import find_blanks, has_blanks
from firth.inference.text_network import repaired
from firth.model import Model
from firth.models.language_model import predicts_tokens
from firth.models.transformer import max_input_length
from firth.utils.errors import InputError


def fit_text(model: Model, text: str, *, room: int = 0) -> tuple[str, str]:
    """Return a text that fits into the model's context with `room` further tokens, and a note.

    Blanks in any notation become the model's mark. The note is "" if the text was not cut.
    """
    if is_invisible(text):
        raise InputError("The text is empty: write a word or more.")
    text = _with_own_marks(model, repaired(text))
    tokenizer, limit = model.input_tokenizer(), max(1, max_input_length(model.network) - room)
    encoding = tokenizer.encoding(text, specials=True)
    length = len(encoding.ids)
    if length <= limit:
        return text, ""
    own = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    fitting = max(1, limit - (length - len(own)))
    while fitting > 1:
        cut = text[: encoding.offsets[own[fitting - 1]][1]]
        if len(tokenizer.encode(cut, specials=True)) <= limit:
            break
        fitting -= 1
    note = (
        f"The text has {length:,} tokens, but the model's context is "
        f"{max_input_length(model.network):,}: only its first {fitting:,} are used."
    )
    return cut, note


def _with_own_marks(model: Model, text: str) -> str:
    if not (has_blanks(text) and predicts_tokens(model.network)) or model.reads_left_context_only:
        return text
    filler = model.blank_filler()
    return filler.with_own_marks(find_blanks(text, filler.mark))


def read_ids(model: Model, text: str) -> list[int]:
    """Return the token ids of a text; those of a decoder have no end token, as in a prompt."""
    if model.config.architecture == "decoder" and predicts_tokens(model.network):
        return list(model.text_generator(max_new_tokens=1).encode_prompt(text).ids)
    return model.input_ids(text).tolist()
