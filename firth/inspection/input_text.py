"""Texts as a model reads them: its own marks of blanks, cut to its context, as token ids."""

from __future__ import annotations

from dataclasses import dataclass, replace

from firth.data.cleaning import is_invisible
from firth.inference.infilling.blanks import find_blanks, has_blanks
from firth.inspection.attribution import explains, find_output
from firth.inspection.task_outputs import Text
from firth.model import Model
from firth.models.language_model import predicts_tokens
from firth.models.transformer import max_input_length
from firth.utils.errors import InputError
from firth.utils.surrogates import without_surrogates


def fit_text(model: Model, text: str, *, room: int = 0) -> tuple[str, str]:
    """Return a text that fits into the model's context, and a note if it was cut, else "".

    `room` is left for tokens to generate, at most half of the context. Blanks in any notation
    become the model's own mark.
    """
    if is_invisible(text):
        raise InputError("The text is empty: write a word or more.")
    text = _with_own_marks(model, without_surrogates(text))
    tokenizer, context = model.input_tokenizer(), max_input_length(model.network)
    limit = max(context - room, context // 2)
    encoding = tokenizer.encoding(text, specials=True)
    length = len(encoding.ids)
    if length <= limit:
        return text, ""
    own = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    for fitting in range(max(1, limit - (length - len(own))), 0, -1):
        cut = text[: encoding.offsets[own[fitting - 1]][1]]
        if len(tokenizer.encode(cut, specials=True)) <= limit:
            break
    note = (
        f"The text has {length:,} tokens, but the model's context is {context:,}: only its first "
        f"{fitting:,} are used."
    )
    return cut, note


def _with_own_marks(model: Model, text: str) -> str:
    if not (has_blanks(text) and predicts_tokens(model.network)) or model.reads_left_context_only:
        return text
    filler = model.blank_filler()
    return filler.with_own_marks(find_blanks(text, filler.mark))


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """The tokens that a network reads for a text or a pair of texts."""

    text: str = ""  # of the tokens `ids`; "" for a pair
    ids: tuple[int, ...]  # of the encoder, or of a decoder without encoder
    target_ids: tuple[int, ...] = ()  # of the decoder, if there is an encoder too
    segments: tuple[int, ...] | None = None
    prefix: int = 0  # first tokens of a decoder that attend in both directions

    def first(self, size: int) -> ModelInput:
        """Return the first tokens of each sequence."""
        return replace(
            self,
            ids=self.ids[:size],
            target_ids=self.target_ids[:size],
            segments=None if self.segments is None else self.segments[:size],
        )


def model_input(model: Model, text: Text, target: str | None = None) -> ModelInput:
    """Return the tokens that a model reads to predict: for its task, or the next or masked token.

    The decoder of an encoder-decoder reads `target`, by default the output that it generates.
    """
    single = text if isinstance(text, str) else ""
    has_task = model.config.label_head in model.network.heads
    if not single or (has_task and explains(model, single)):
        row = find_output(model, text, target).row
        segments = tuple(row.segments.tolist()) if model.config.num_segments else None
        return ModelInput(text=single, ids=tuple(row.tokens.tolist()), segments=segments)
    if has_task or not predicts_tokens(model.network):
        return ModelInput(text=single, ids=tuple(model.input_ids(single).tolist()))
    bidirectional, request = model.scoring_request(single, [] if target is None else [target])
    if request.source:
        return ModelInput(text=single, ids=request.source, target_ids=request.tokens)
    prefix = len(request.tokens) if bidirectional else request.prefix
    return ModelInput(text=single, ids=request.tokens, prefix=prefix)
