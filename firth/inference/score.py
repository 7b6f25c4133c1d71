"""How likely a model finds a text: the natural logarithm of the probability of each token.

A decoder is asked for each token behind those before it; an encoder-decoder, for what its decoder
writes when its encoder reads something. Both come down to rows that a network reads. Masked models
are asked in another way: `pseudo.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from firth.adapt.prompts import reading_room, room_in
from firth.errors import MismatchError
from firth.inference.framing import given
from firth.inference.rows import Asked, Ids, Score, scores
from firth.models.transformer import Transformer
from firth.streams import in_windows
from firth.text.tokenizer import Tokenizer

__all__ = ["Score", "continuations", "likelihoods"]

TEXTS, CHARACTERS = 512, 1 << 22  # that are tokenised together, at most


# ---- what people ask ----------------------------------------------------------------------------


def continuations(
    network: Transformer, pairs: Iterable[tuple[Ids, Ids]], *, batch: int = 0
) -> list[Score]:
    """How likely each continuation is behind its context, both in tokens.

    A decoder's context holds the token that begins a text, if it has one; behind an encoder, the
    context is what the encoder reads, and the continuation what the decoder writes. Contexts that
    several continuations share are read once.
    """
    config = network.config
    if not config.has_decoder:
        raise MismatchError(
            "An encoder cannot say how a text goes on: it sees both sides of every token. Take a "
            "decoder or an encoder-decoder, or hide tokens and ask for them (pseudo-likelihood)."
        )
    ask = _written if config.has_encoder else _continued
    return list(scores(network, (ask(network, *pair) for pair in pairs), batch=batch))


def likelihoods(
    network: Transformer, tokenizer: Tokenizer, texts: Iterable[str], *, batch: int = 0
) -> Iterator[Score]:
    """How likely whole texts are to a decoder, each token behind all before it.

    Before the text stands the token that begins one. A model that has none is not asked for the
    first token of a text, since nothing stands before it: its score is of the others.
    """
    if network.config.architecture != "decoder":
        raise MismatchError(cannot_read_whole(network.config.architecture))
    begin = given(network.config.begin_id)
    pairs = ((begin or ids[:1], ids if begin else ids[1:]) for ids in _ids(tokenizer, texts))
    # A text of no tokens, or a single one that nothing stands before, asks for nothing.
    asked = (_continued(network, first or [0], rest) for first, rest in pairs)
    return scores(network, asked, batch=batch)


def cannot_read_whole(architecture: str) -> str:
    """Why whole texts have no likelihood."""
    if architecture == "encoder":
        return (
            "An encoder has no likelihood of a text, since each token sees the others; it has a "
            "pseudo-likelihood, of each token hidden in turn."
        )
    return (
        "An encoder-decoder has no likelihood of a whole text: what its decoder writes depends on "
        "what its encoder reads. A decoder has one, and a masked encoder a pseudo-likelihood; this "
        "model can score a target for a source."
    )


# ---- rows ---------------------------------------------------------------------------------------


def _continued(network: Transformer, context: Ids, continuation: Ids) -> Asked:
    """What a decoder reads to be asked for a continuation: all but its last token."""
    if not len(context):
        raise MismatchError("A continuation needs at least one token before it: give a context.")
    row = (*context, *continuation[:-1])
    check_room(len(row), room_in(network.stack))
    first = len(context) - 1
    return Asked(row, range(first, first + len(continuation)), continuation)


def _written(network: Transformer, context: Ids, continuation: Ids) -> Asked:
    """The same behind an encoder, where the decoder begins with a token of its own."""
    start = network.config.start_id or 0
    row = (start, *continuation[:-1])
    check_room(len(row), room_in(network.stack))
    check_room(len(context), reading_room(network))
    return Asked(row, range(len(continuation)), continuation, tuple(context))


def check_room(length: int, most: int) -> None:
    if length > most:
        raise MismatchError(
            f"A text and what stands before it take {length:,} tokens, but the model sees only "
            f"{most:,}; shorten it."
        )


def _ids(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    for some in in_groups(texts):
        encoded = tokenizer.backend.encode_batch_fast(some, add_special_tokens=False)
        yield from (encoding.ids for encoding in encoded)


def in_groups(texts: Iterable[str]) -> Iterator[list[str]]:
    """A few hundred texts at a time."""
    return in_windows(texts, len, CHARACTERS, TEXTS)
