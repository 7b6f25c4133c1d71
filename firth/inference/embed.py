"""Texts to vectors: one for each token of a text, and one for the text as a whole.

S  texts     N  tokens of all of them     W  width
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firth.adapt.prompts import reading_room
from firth.errors import FirthError, Misuse
from firth.inference.embedder import Embedder
from firth.models.journey import Fetched, as_tensor
from firth.models.masks import Mask
from firth.models.pooling import pool_stream
from firth.streams import in_windows
from firth.text.readers import INVALID

Floats = NDArray[np.float32]
Item = TypeVar("Item")

ROWS, CHARACTERS = 2048, 1 << 18  # of texts that are sorted by their length together


class Tokens(NamedTuple):
    """The tokens of some texts."""

    rows: Sequence[Sequence[int]]
    cut: NDArray[np.bool_]  # (S,) the text is longer than what the model sees


@dataclass(frozen=True)
class Vectors:
    """The vectors of some texts, and what became of the texts on the way."""

    values: Floats  # (S, W)
    cut: NDArray[np.bool_]  # (S,) the text is longer than what the model sees
    tokens: int

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which vectors are made of numbers alone."""  # (S,)
        return np.asarray(np.isfinite(self.values).all(axis=1))


@dataclass(frozen=True)
class Flight:
    """Vectors that a network has been asked for; on a GPU, they may still be on their way."""

    tokens: Tokens
    order: list[int]  # which text each row is the vector of
    vectors: Fetched  # (texts with tokens, W)

    def land(self) -> Vectors:
        """The vectors, once they are here."""
        rows, vectors = self.tokens.rows, self.vectors.here().numpy()
        values = np.zeros((len(rows), vectors.shape[1]), dtype=np.float32)
        values[self.order] = vectors
        return Vectors(values, self.tokens.cut, sum(map(len, rows)))


def embed(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """One vector for each text; a text longer than the model sees is cut.

    A text without a single token, which only models without a token at the ends can have, gets a
    vector of zeros.
    """
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise Misuse("Texts to embed are a list of strings; put a single one into a list.")
    whole = np.zeros((len(texts), embedder.width), dtype=np.float32)
    done = 0
    for chunk, vectors in embed_chunks(
        embedder, chunked(texts, len), partial(encode_texts, embedder)
    ):
        if not vectors.finite.all():
            bad = done + int(np.argmin(vectors.finite))
            raise FirthError(
                f"The vector of text {bad} (counted from 0) is not finite: the network overflows "
                'on it, or has weights that are not numbers; dtype="float32" may help.'
            )
        whole[done : done + len(chunk)] = vectors.values
        done += len(chunk)
    return whole


def chunked(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Neighbours of about so many characters together, so that memory is bounded.

    >>> list(chunked(["ab", "c", "d" * CHARACTERS, "e"], len))[1]
    ['e']
    """
    return in_windows(items, size, CHARACTERS, ROWS)


def embed_chunks(
    embedder: Embedder,
    chunks: Iterable[list[Item]],
    encode: Callable[[list[Item]], Tokens],
    *,
    ahead: bool | None = None,
) -> Iterator[tuple[list[Item], Vectors]]:
    """Each chunk with its vectors; `ahead`, as on a GPU: the next is begun before one is done.

    Then a thread makes tokens of one chunk while the network reads another, and the vectors of a
    third travel. What comes before a fault of the source is given first.
    """
    if not (embedder.device.type == "cuda" if ahead is None else ahead):
        for chunk in chunks:
            yield chunk, start(embedder, encode(chunk)).land()
        return
    coming: deque[tuple[list[Item], Future[Tokens]]] = deque()
    flying: deque[tuple[list[Item], Flight]] = deque()
    source, going, fault = iter(chunks), True, None
    with ThreadPoolExecutor(1) as thread:
        while going:
            try:
                following = next(source, None)
            except Exception as error:
                following, fault = None, error
            if following is None:
                going = False
            else:
                coming.append((following, thread.submit(encode, following)))
            while len(coming) > going:
                chunk, tokens = coming.popleft()
                flying.append((chunk, start(embedder, tokens.result())))
                if len(flying) > 1:
                    chunk, flight = flying.popleft()
                    yield chunk, flight.land()
        for chunk, flight in flying:
            yield chunk, flight.land()
    if fault is not None:
        raise fault


@torch.no_grad()
def start(embedder: Embedder, tokens: Tokens) -> Flight:
    """Ask a network for the vectors of texts: those of similar length together."""
    device = embedder.device
    order: list[int] = []
    parts: list[Tensor] = []
    with embedder.reading():
        for rows in _batches([len(row) for row in tokens.rows], embedder.budget):
            stream, mask = _stream(embedder, [tokens.rows[row] for row in rows])
            with torch.autocast(device.type, enabled=False):
                pooled = pool_stream(stream, mask, embedder.pooling, embedder.skip)
                parts.append(embedder.steps(pooled).float())
            order += rows
    vectors = torch.cat(parts) if parts else torch.empty(0, embedder.width, device=device)
    return Flight(tokens, order, Fetched(vectors))


def encode_texts(embedder: Embedder, texts: Sequence[str]) -> Tokens:
    """The tokens of each text, and whether some had to be left out."""
    backend, limit = embedder.tokenizer.backend, embedder.limit
    whole = [embedder.prompt + _speakable(text) for text in texts]
    encodings = backend.encode_batch_fast(whole)
    ids = [encoding.ids for encoding in encodings]
    cut = np.array([len(row) > limit for row in ids], dtype=np.bool_)
    from_left = embedder.tokenizer.config.get("truncation_side") == "left"
    for row in np.flatnonzero(cut):
        ids[row] = _shortened(ids[row], encodings[row].special_tokens_mask, limit, from_left)
    return Tokens(ids, cut)


def _shortened(ids: list[int], special: list[int], limit: int, from_left: bool) -> list[int]:
    """A text that is too long without its last tokens (or its first), but with those at its ends.

    >>> _shortened([101, 7, 8, 9, 102], [1, 0, 0, 0, 1], 4, from_left=False)
    [101, 7, 8, 102]
    """
    first, last = special.index(0), len(special) - special[::-1].index(0)
    room = max(0, limit - (first + len(ids) - last))
    kept = ids[last - room : last] if from_left else ids[first : first + room]
    return [*ids[:first], *kept, *ids[last:]]


def _speakable(text: str) -> str:
    """A text without half characters (surrogates), of which no tokens can be made."""
    return text if text.isascii() else INVALID.sub("\ufffd", text)


def _batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Texts of similar length, the longest first, so many that they are `budget` tokens together.

    >>> list(_batches([2, 9, 3, 0, 3], budget=6))
    [[1], [2, 4], [0]]
    """
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
    begin = 0
    while begin < len(order):
        count = max(1, budget // lengths[order[begin]])
        yield order[begin : begin + count]
        begin += count


def _stream(embedder: Embedder, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Mask]:
    """What the network makes of each token, several texts at once."""  # (N, W)
    network, device = embedder.network, embedder.device
    lengths = [len(row) for row in ids]
    flat = np.fromiter(chain.from_iterable(ids), np.int64, count=sum(lengths))
    tokens = as_tensor(flat, device)
    both_ways = network.encoder is not None
    mask = Mask(lengths, device=device) if both_ways else Mask.causal(lengths, device=device)
    kept, read = _Kept(embedder.layers), network.encode if both_ways else network
    read(tokens, mask, layers=kept)
    return sum(kept[1:], kept[0]) / len(kept) if len(kept) > 1 else kept[0], mask


class _Kept(list[Tensor]):
    """Collects what leaves the layers that are asked for, as often as they are, and no other."""

    def __init__(self, wanted: Sequence[int]) -> None:
        super().__init__()
        self.wanted, self.seen = wanted, 0

    def append(self, layer: Tensor) -> None:
        self.extend([layer.float()] * self.wanted.count(self.seen))
        self.seen += 1


# ---- single tokens ----------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenVector:
    """A token of a text, the characters it stands for, and what the network makes of it."""

    token: str
    span: tuple[int, int]  # begin and end in the text
    vector: Floats  # (W,)


@torch.no_grad()
def embed_tokens(embedder: Embedder, text: str) -> list[TokenVector]:
    """One vector for each token of a text, in its context; without the tokens at the ends."""
    text = _speakable(text)
    encoding = embedder.tokenizer.backend.encode(text)
    if len(encoding.ids) > (most := reading_room(embedder.network)):
        raise Misuse(f"The text has {len(encoding.ids)} tokens, the model sees only {most}.")
    if not encoding.ids:
        return []
    with embedder.reading():
        stream, _ = _stream(embedder, [encoding.ids])
    vectors: Floats = stream.float().cpu().numpy()
    if not np.isfinite(vectors).all():
        raise FirthError('The network overflows on this text; dtype="float32" may help.')
    rows = zip(encoding.tokens, encoding.offsets, vectors, strict=True)
    inside = [not special for special in encoding.special_tokens_mask]
    return [TokenVector(*row) for row, real in zip(rows, inside, strict=True) if real]
