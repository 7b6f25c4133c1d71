"""How likely a model finds a text: the natural logarithm of the probability of each token.

A decoder is asked for each token behind those before it; an encoder-decoder, for what its decoder
writes when its encoder reads something; a masked model, for each token hidden in turn (its
pseudo-log-likelihood, Salazar et al. 2020). All of it comes down to rows that a network reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from firth.adapt.prompts import reading_room, room, room_in
from firth.errors import MismatchError
from firth.inference.framing import given
from firth.inference.rows import Asked, Ids, Score, scores
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer

__all__ = ["Score", "continuations", "likelihoods", "pseudo_likelihoods"]

TEXTS = 512  # that are tokenised together


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


def pseudo_likelihoods(
    network: Transformer,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    by_word: bool = False,
    batch: int = 0,
) -> Iterator[Score]:
    """The pseudo-log-likelihood of whole texts: each token is hidden in turn and asked for.

    With `by_word`, the rest of its word is hidden with it, so that a rare word is not given away by
    its own second half (Kauf and Ivanova 2023). A decoder must have learned to fill blanks, too
    (the `hybrid` objective): it then reads both ways, and is asked for a token at the place before.
    """
    mask = tokenizer.special_ids.get("mask")
    if network.config.architecture == "encoder-decoder":
        raise MismatchError(cannot_read_whole("encoder-decoder"))
    if mask is None:
        raise MismatchError("This model's tokenizer has no mask token, so no token can be hidden.")
    framed = _framed_by_decoder if network.config.has_decoder else _framed_by_encoder
    shift = int(network.config.has_decoder)
    most, sizes = room(network), deque[int]()

    def asked() -> Iterator[Asked]:
        for row, hideable, words in framed(network, tokenizer, texts):
            _check_room(len(row), most)
            sizes.append(len(hideable))
            for place in hideable:
                end = _end_of_word(words, place) if by_word else place + 1
                seen = (*row[:place], *[mask] * (end - place), *row[end:])
                yield Asked(seen, (place - shift,), (row[place],))

    return _gathered(scores(network, asked(), both_ways=True, batch=batch), sizes)


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
    _check_room(len(row), room_in(network.stack))
    first = len(context) - 1
    return Asked(row, range(first, first + len(continuation)), continuation)


def _written(network: Transformer, context: Ids, continuation: Ids) -> Asked:
    """The same behind an encoder, where the decoder begins with a token of its own."""
    start = network.config.start_id or 0
    row = (start, *continuation[:-1])
    _check_room(len(row), room_in(network.stack))
    _check_room(len(context), reading_room(network))
    return Asked(row, range(len(continuation)), continuation, tuple(context))


def _check_room(length: int, most: int) -> None:
    if length > most:
        raise MismatchError(
            f"A text and what stands before it take {length:,} tokens, but the model sees only "
            f"{most:,}; shorten it."
        )


def _ids(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    for some in _some(texts):
        encoded = tokenizer.backend.encode_batch_fast(some, add_special_tokens=False)
        yield from (encoding.ids for encoding in encoded)


def _some(texts: Iterable[str]) -> Iterator[list[str]]:
    """A few hundred texts at a time."""
    group: list[str] = []
    for text in texts:
        group.append(text)
        if len(group) == TEXTS:
            yield group
            group = []
    yield group


Framing = tuple[list[int], list[int], list[int | None]]  # tokens, the hideable, words of tokens


def _framed_by_encoder(
    network: Transformer, tokenizer: Tokenizer, texts: Iterable[str]
) -> Iterator[Framing]:
    """Texts as an encoder reads them: with what its family puts around each, never hidden."""
    for some in _some(texts):
        for made in tokenizer.backend.encode_batch(some, add_special_tokens=True):
            added = made.special_tokens_mask
            yield made.ids, [i for i, is_added in enumerate(added) if not is_added], made.word_ids


def _framed_by_decoder(
    network: Transformer, tokenizer: Tokenizer, texts: Iterable[str]
) -> Iterator[Framing]:
    """Texts between the tokens that begin and end one; what stands first cannot be asked for."""
    begin, end = given(network.config.begin_id), given(network.config.end_id)
    for some in _some(texts):
        for made in tokenizer.backend.encode_batch(some, add_special_tokens=False):
            hideable = range(len(begin), len(begin) + len(made.ids))
            words = [*[None] * len(begin), *made.word_ids, *[None] * len(end)]
            yield [*begin, *made.ids, *end], [i for i in hideable if i], words


def _end_of_word(words: Sequence[int | None], place: int) -> int:
    """Where the word that a place belongs to ends.

    >>> _end_of_word([None, 0, 1, 1, 1, 2, None], 3)
    5
    """
    end = place + 1
    while end < len(words) and words[end] is not None and words[end] == words[place]:
        end += 1
    return end


def _gathered(found: Iterator[Score], sizes: deque[int]) -> Iterator[Score]:
    """The scores of single tokens, put together again: so many for each text."""
    logs, greedy = list[float](), True
    for one in chain(found, (None,)):
        while sizes and len(logs) == sizes[0]:
            yield Score(np.array(logs), greedy)
            logs, greedy = [], True
            sizes.popleft()
        if one is not None:
            logs.append(float(one.logs[0]))
            greedy &= one.is_greedy
