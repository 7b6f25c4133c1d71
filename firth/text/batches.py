"""Which tokens come next: a shuffled, packed order over shards whose whole state is one position.

In each epoch the documents stand in a new random order, end to end. A position is (epoch, token
index in that order), and packing is greedy from there: what follows depends on the position
alone, not on how the run came to it, and finding it again needs no replay. Lengths and sizes may
change from batch to batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from firth.draws import Bools, Keys, Longs, derive, derive_one, uniforms
from firth.errors import InputError, Misuse
from firth.objectives.batch import Packed
from firth.text.shards import Shards

Made = TypeVar("Made")

DOCUMENTS = 1024  # looked up together
SMALLEST = 16  # tokens: a smaller rest of a batch is left empty rather than filled with a fragment
PAIR = 40  # what is drawn


Row = tuple[int, int, int, int, int]  # document, first token, end, epoch, position of the first


class Position(NamedTuple):
    """A place in the endless stream of all epochs."""

    epoch: int = 0
    token: int = 0


@dataclass(frozen=True)
class Pieces:
    """Stretches of documents, one for each sequence."""

    documents: Longs  # (S,)
    starts: Longs  # (S,) the first token of the stretch in its document
    ends: Longs  # (S,)
    keys: Keys  # (S,) the randomness of each


class Sampler:
    """Takes pieces of documents from shards, in an order that a seed and a position decide."""

    def __init__(self, shards: Shards, seed: int = 0) -> None:
        if not len(shards):
            raise InputError(f"{shards.path} holds no documents to learn from.")
        self.shards = shards
        self.seed = derive_one(seed, 0)
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def _shuffle(self, epoch: int) -> tuple[Longs, Longs]:
        """The documents in the order of an epoch, and where each ends in the stream of tokens."""
        keys = derive(derive(self.seed, epoch), np.arange(len(self.shards)))
        order = np.argsort(keys)
        return order, np.cumsum(self.shards.lengths[order])

    def take(
        self, position: Position, *, length: int, tokens: int, frame: int = 2
    ) -> tuple[Pieces, Position]:
        """The next pieces that fill `tokens`, none longer than `length` with its frame around it.

        A document longer than that goes on in the next piece, in this batch or another.
        """
        if min(length, tokens) <= frame:
            raise Misuse(
                f"A sequence length of {min(length, tokens)} has no room for text beside {frame} "
                "special tokens."
            )
        rows: list[Row] = []
        left, least = tokens, max(frame + 1, min(SMALLEST, length, tokens))
        for document, start, end, epoch, token in self._from(position):
            while start < end:
                if left < least:
                    return self._pieces(rows), Position(epoch, token)
                size = min(length - frame, left - frame, end - start)
                rows.append((document, start, start + size, epoch, token))
                start, token, left = start + size, token + size, left - size - frame
        raise AssertionError("the stream has no end")

    def _from(self, position: Position) -> Iterator[Row]:
        """What is left of each document from a position on, without end."""
        epoch, token = position
        while True:
            order, ends = self._order(epoch)
            first = int(np.searchsorted(ends, token, side="right"))
            for some in range(first, len(order), DOCUMENTS):  # Python reads lists much faster
                part = order[some : some + DOCUMENTS]
                columns = part, self.shards.lengths[part], ends[some : some + DOCUMENTS]
                for document, length, end in zip(*(c.tolist() for c in columns), strict=True):
                    yield document, token - (end - length), length, epoch, token
                    token = end
            epoch, token = epoch + 1, 0

    def take_pairs(
        self, position: Position, *, length: int, tokens: int, random_half: bool
    ) -> tuple[tuple[Pieces, Pieces, Bools], Position]:
        """The next pairs of texts, each of whole sentences, that fill `tokens` with three specials.

        With `random_half`, half of the second texts come from another document, and what would have
        followed is left for the next pair (as in BERT's data code). Else every second text follows
        its first. A last sentence that stands alone is passed over: nothing follows it.
        """
        if random_half and len(self.shards) < 2:
            raise InputError(
                f"Next-sentence prediction needs two documents, and {self.shards.path} has one; "
                "split the text (--documents), or choose an objective without pairs."
            )
        if length < 5:
            raise Misuse(f"A pair and its three special tokens need a length of 5, not {length}.")
        firsts: list[Row] = []
        seconds: list[Row] = []
        left = tokens
        for document, start, _, epoch, token in self._from(position):
            if epoch > position.epoch + 1 and not firsts:
                raise InputError(
                    f"No document of {self.shards.path} has two sentences to make a pair of; "
                    "keep longer documents together (--documents), or choose another objective."
                )
            bounds = self._sentences(document, start)
            while len(bounds) > 2:  # at least two sentences are left
                if left < min(length, tokens):
                    pairs = self._pieces(firsts), self._pieces(seconds)
                    follows = pairs[0].documents == pairs[1].documents
                    return (*pairs, follows), Position(epoch, token)
                draws = uniforms(derive_one(derive_one(self.seed, epoch), token), PAIR, 6)
                last, middle = _split(bounds, length - 3, draws)
                size = int(bounds[middle] - bounds[0])
                if random_half and draws[3] < 0.5:
                    second = self._elsewhere(document, draws[4:], max(length - 3 - size, 1))
                    last = middle  # what would have followed comes next
                else:
                    second = document, int(bounds[middle]), int(bounds[last])
                firsts.append((document, int(bounds[0]), int(bounds[middle]), epoch, token))
                seconds.append((*second, epoch, token))
                left -= min(length, size + second[2] - second[1] + 3)
                token += int(bounds[last] - bounds[0])
                bounds = bounds[last:]
        raise AssertionError("the stream has no end")

    def _sentences(self, document: int, start: int) -> Longs:
        """Where the sentences of a document begin from `start` on; then its end."""
        bounds = self.shards.sentences(document)
        return np.concatenate(([start], bounds[bounds > start]))

    def _elsewhere(self, document: int, draws: list[float], room: int) -> tuple[int, int, int]:
        """A random text of about so many tokens from another document."""
        other = int(draws[0] * (len(self.shards) - 1))
        other += other >= document
        bounds = self.shards.sentences(other)
        first = int(draws[1] * (len(bounds) - 1))
        last = int(np.searchsorted(bounds, bounds[first] + room))
        return other, int(bounds[first]), int(bounds[min(last, len(bounds) - 1)])

    def _pieces(self, rows: list[Row]) -> Pieces:
        documents, starts, ends, epochs, tokens = np.array(rows, dtype=np.int64).reshape(-1, 5).T
        return Pieces(documents, starts, ends, derive(derive(self.seed, epochs), tokens))

    def gather(
        self,
        pieces: Pieces,
        *,
        first: int | None = None,
        last: int | None = None,
        at_document_ends_only: bool = False,
    ) -> Packed:
        """The tokens of pieces, with a special token before and behind each if there are any.

        Or only where a document really begins and ends.
        """
        text = self.shards.gather(pieces.documents, pieces.starts, pieces.ends)
        sizes = pieces.ends - pieces.starts
        anywhere = not at_document_ends_only
        whole = self.shards.lengths[pieces.documents]
        front = (first is not None) & (anywhere | (pieces.starts == 0))  # (S,)
        back = (last is not None) & (anywhere | (pieces.ends == whole))
        starts = np.concatenate(([0], np.cumsum(sizes + front + back)))
        tokens = np.empty(starts[-1], dtype=np.int64)
        is_text = np.ones(len(tokens), dtype=np.bool_)
        heads, tails = starts[:-1][front], starts[1:][back] - 1
        is_text[heads] = is_text[tails] = False
        tokens[is_text] = text
        tokens[heads], tokens[tails] = first or 0, last or 0
        return Packed(tokens, starts, pieces.keys)

    def sentence_starts(self, pieces: Pieces) -> Longs:
        """Where sentences begin in the bare tokens of pieces; every piece begins one."""
        rows, size = [], 0
        columns = (pieces.documents, pieces.starts, pieces.ends)
        for document, start, end in zip(*(column.tolist() for column in columns), strict=True):
            bounds = self._sentences(document, start)
            rows.append(bounds[bounds < end] - start + size)
            size += end - start
        return np.concatenate(rows)


def _split(bounds: Longs, room: int, draws: list[float]) -> tuple[int, int]:
    """Where a pair ends and where it is parted, as indices of sentence bounds."""
    # One in ten is shorter, so that a model meets short texts too (Devlin et al. 2019, A.2).
    target = room if draws[0] >= 0.1 else 2 + int(draws[1] * (room - 1))
    enough = int(np.searchsorted(bounds, bounds[0] + target))
    last = min(max(enough, 2), len(bounds) - 1)
    return last, 1 + int(draws[2] * (last - 1))


def in_order(jobs: Iterator[Callable[[], Made]], workers: int = 2) -> Iterator[Made]:
    """Results of jobs in their order, a few being made ahead by threads."""
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(workers) as threads:
        for job in jobs:
            waiting.append(threads.submit(job))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
