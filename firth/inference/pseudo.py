"""How likely a masked model finds a text: each of its tokens is hidden in turn and asked for.

    C  copies of texts, one for each hidden token     L  tokens of each     R  different ones

The sum is a text's pseudo-log-likelihood (Salazar et al. 2020). A text of a dozen tokens becomes a
dozen rows, so copies are made and put together by arrays: those of one length are read together.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from firth.adapt.prompts import room
from firth.draws import Bools, Floats, Longs
from firth.errors import MismatchError
from firth.inference.framing import given
from firth.inference.rows import AHEAD, BATCH, Score, check_head, look
from firth.inference.score import cannot_read_whole, check_room, in_groups
from firth.models.journey import as_tensor
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.streams import in_windows
from firth.text.tokenizer import Tokenizer


class Hiding(NamedTuple):
    """Some tokens of a text that are to be hidden, one after the other."""

    row: Longs  # (L,) the text, with what stands around it
    places: Longs  # (C,)
    ends: Longs  # (C,) with each token, those up to here are hidden too

    @property
    def size(self) -> int:
        """How many tokens are read for it."""
        return len(self.row) * len(self.places)


def pseudo_likelihoods(
    network: Transformer,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    by_word: bool = False,
    batch: int = 0,
) -> Iterator[Score]:
    """The pseudo-log-likelihood of whole texts.

    With `by_word`, the rest of its word is hidden with a token, so that a rare word is not given
    away by its own second half (Kauf and Ivanova 2023). A decoder must have learned to fill blanks,
    too (the `hybrid` objective): it then reads both ways, and is asked for a token at the place
    before. `batch`: tokens that are read at once.
    """
    mask = tokenizer.special_ids.get("mask")
    if network.config.architecture == "encoder-decoder":
        raise MismatchError(cannot_read_whole("encoder-decoder"))
    if mask is None:
        raise MismatchError("This model's tokenizer has no mask token, so no token can be hidden.")
    check_head(network)
    size = batch or BATCH.get(network.tokens.weight.device.type, BATCH["cpu"])
    framed = _framed_by_decoder if network.config.has_decoder else _framed_by_encoder
    most, sizes = room(network), deque[int]()

    def hidings() -> Iterator[Hiding]:
        for row, hideable, words in framed(network, tokenizer, texts):
            check_room(len(row), most)
            sizes.append(len(hideable))
            ends = [_end_of_word(words, i) if by_word else i + 1 for i in hideable]
            at_once = max(1, size * AHEAD // max(1, len(row)))
            for begin in range(0, len(hideable), at_once):
                some = slice(begin, begin + at_once)
                yield Hiding(*(np.array(part) for part in (row, hideable[some], ends[some])))

    found = (
        score
        for window in in_windows(hidings(), lambda one: one.size, size * AHEAD)
        for score in _answers(network, window, mask, size)
    )
    return _gathered(found, sizes)


def _answers(
    network: Transformer, window: Sequence[Hiding], mask: int, size: int
) -> list[tuple[Floats, Bools]]:
    """The log-probability of each token that was hidden; whether it was the likeliest."""
    found: list[tuple[Floats, Bools]] = [(np.empty(0), np.empty(0, np.bool_))] * len(window)
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(window):
        by_length[len(one.row)].append(i)
    for members in by_length.values():
        some = [window[i] for i in members]
        logs, best = _same_length(network, some, mask, size)
        ends = np.cumsum([len(one.places) for one in some])[:-1]
        parts = zip(members, np.split(logs, ends), np.split(best, ends), strict=True)
        for i, own, right in parts:
            found[i] = own, right
    return found


@torch.no_grad()
def _same_length(
    network: Transformer, hidings: Sequence[Hiding], mask: int, size: int
) -> tuple[Floats, Bools]:
    """The same for texts of one length; copies that are alike are read once."""
    rows, which = np.unique(  # (R, L), (C,)
        np.concatenate([_copies(one, mask) for one in hidings]), axis=0, return_inverse=True
    )
    shift = int(network.config.has_decoder)
    places = np.concatenate([one.places for one in hidings]) - shift
    targets = np.concatenate([one.row[one.places] for one in hidings])
    logs, best = np.empty(len(places)), np.empty(len(places), dtype=np.bool_)
    length, device = rows.shape[1], network.tokens.weight.device
    at_once = max(1, size // length)
    for begin in range(0, len(rows), at_once):
        some = rows[begin : begin + at_once]
        asked = np.flatnonzero((which >= begin) & (which < begin + len(some)))
        lengths = Mask(np.full(len(some), length), device=device)
        hidden = network(as_tensor(some.reshape(-1), device), lengths)
        flat = (which[asked] - begin) * length + places[asked]
        logs[asked], best[asked] = look(network, hidden, flat, targets[asked])
    return logs, best


def _copies(one: Hiding, mask: int) -> Longs:
    """A text as often as something is hidden in it.

    >>> _copies(Hiding(np.array([1, 7, 8, 2]), np.array([1, 2]), np.array([3, 3])), 0).tolist()
    [[1, 0, 0, 2], [1, 7, 0, 2]]
    """
    inside = np.arange(len(one.row))
    hidden = (inside >= one.places[:, None]) & (inside < one.ends[:, None])  # (C, L)
    return np.where(hidden, mask, one.row)


Framing = tuple[list[int], list[int], list[int | None]]  # tokens, the hideable, words of tokens


def _framed_by_encoder(
    network: Transformer, tokenizer: Tokenizer, texts: Iterable[str]
) -> Iterator[Framing]:
    """Texts as an encoder reads them: with what its family puts around each, never hidden."""
    for some in in_groups(texts):
        for made in tokenizer.backend.encode_batch(some, add_special_tokens=True):
            added = made.special_tokens_mask
            yield made.ids, [i for i, is_added in enumerate(added) if not is_added], made.word_ids


def _framed_by_decoder(
    network: Transformer, tokenizer: Tokenizer, texts: Iterable[str]
) -> Iterator[Framing]:
    """Texts between the tokens that begin and end one; what stands first cannot be asked for."""
    begin, end = given(network.config.begin_id), given(network.config.end_id)
    for some in in_groups(texts):
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


def _gathered(found: Iterator[tuple[Floats, Bools]], sizes: deque[int]) -> Iterator[Score]:
    """What was found of each text, put together: so many tokens of each."""
    logs, best = np.empty(0), np.empty(0, dtype=np.bool_)
    for some, right in found:
        while sizes and len(logs) == sizes[0]:
            sizes.popleft()
            yield Score(logs, bool(best.all()))
            logs, best = logs[:0], best[:0]
        logs, best = np.concatenate([logs, some]), np.concatenate([best, right])
    while sizes:
        sizes.popleft()
        yield Score(logs, bool(best.all()))
        logs, best = logs[:0], best[:0]
