"""The sampler: shuffled and packed spans of documents, whose whole state is one position.

In each epoch the documents are concatenated in a new random order. A position is (epoch, token
index in that order), and packing is greedy from there: what follows depends on the position alone,
so that a run resumes without replaying earlier batches. Lengths and batch sizes may change from
batch to batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from firth.data.mixture import RepetitionSchedule
from firth.data.packing import PackedSequences
from firth.data.shards import Shards
from firth.utils.errors import InputError, UsageError
from firth.utils.rng import Bools, Keys, Longs, derive_key, derive_keys, uniform_list

Result = TypeVar("Result")

DOCUMENT_CHUNK = 1024  # documents looked up at once
MIN_SPAN = 16  # tokens: a smaller rest of a batch stays empty
PAIR = 40  # name of the random draw


Row = tuple[int, int, int, int, int]  # document, first token, end, epoch, position of the first


class SamplerPosition(NamedTuple):
    """A position in the infinite stream of all epochs."""

    epoch: int = 0
    token: int = 0


@dataclass(frozen=True)
class DocumentSpans:
    """Spans of documents, one for each sequence."""

    documents: Longs  # (S,)
    starts: Longs  # (S,) first token of the span in its document
    ends: Longs  # (S,)
    keys: Keys  # (S,) random-number key of each


class Sampler:
    """Draw spans of documents from shards, in an order determined by a seed.

    With a mixture, an epoch repeats or omits documents so that each source has its fraction of the
    tokens; sources that are not in the mixture are left out. With `full_sentences`, spans begin and
    end where sentences do (FULL-SENTENCES in Liu et al. 2019, section 4.2).
    """

    def __init__(
        self,
        shards: Shards,
        seed: int = 0,
        mixture: Mapping[str, float] | None = None,
        *,
        full_sentences: bool = False,
    ) -> None:
        if not len(shards):
            raise InputError(f"{shards.path} holds no training documents.")
        self.shards, self.full_sentences = shards, full_sentences
        self.seed = derive_key(seed, 0)
        self._schedule = None if mixture is None else RepetitionSchedule(shards, mixture, self.seed)
        self.documents = (
            np.arange(len(shards)) if self._schedule is None else self._schedule.documents
        )
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def _shuffle(self, epoch: int) -> tuple[Longs, Longs]:
        """Return the documents in the order of an epoch, and their ends in the token stream."""
        keys = derive_keys(derive_keys(self.seed, epoch), self.documents)
        documents = self.documents
        if self._schedule is not None:
            documents, keys = self._schedule.repeat(epoch, keys)
        order = documents[np.argsort(keys)]
        return order, np.cumsum(self.shards.lengths[order])

    def order(self, epoch: int) -> Longs:
        """Return the documents of an epoch in their order."""
        return self._order(epoch)[0]

    def take(
        self, position: SamplerPosition, *, length: int, tokens: int, frame: int = 2
    ) -> tuple[DocumentSpans, SamplerPosition]:
        """Draw the next spans for a batch of `tokens`, each of at most `length` with its frame.

        `frame` is the number of special tokens around a span. Longer documents continue in the next
        span, in this batch or the next. With `full_sentences`, only sentences longer than `length`
        are divided.
        """
        if min(length, tokens) <= frame:
            raise UsageError(
                f"A sequence length of {min(length, tokens)} has no room for text besides {frame} "
                "special tokens."
            )
        rows: list[Row] = []
        left, least = tokens, max(frame + 1, min(MIN_SPAN, length, tokens))
        for document, start, end, epoch, token in self._documents_from(position):
            bounds = self.shards.sentences(document).tolist() if self.full_sentences else None
            while start < end:
                if left < least:
                    return self._spans(rows), SamplerPosition(epoch, token)
                size = min(length - frame, left - frame, end - start)
                if bounds is not None and start + size < end:
                    whole = bounds[bisect_right(bounds, start + size) - 1] - start
                    if whole <= 0 and left < length and rows:  # it fits into the next batch
                        return self._spans(rows), SamplerPosition(epoch, token)
                    size = whole if whole > 0 else size
                rows.append((document, start, start + size, epoch, token))
                start, token, left = start + size, token + size, left - size - frame
        raise AssertionError("the stream is infinite")

    def _documents_from(self, position: SamplerPosition) -> Iterator[Row]:
        """Yield the rest of each document from a position on, for all epochs."""
        epoch, token = position
        while True:
            order, ends = self._order(epoch)
            first = int(np.searchsorted(ends, token, side="right"))
            for some in range(
                first, len(order), DOCUMENT_CHUNK
            ):  # iterating over lists is much faster
                part = order[some : some + DOCUMENT_CHUNK]
                columns = part, self.shards.lengths[part], ends[some : some + DOCUMENT_CHUNK]
                for document, length, end in zip(*(c.tolist() for c in columns), strict=True):
                    yield document, token - (end - length), length, epoch, token
                    token = end
            epoch, token = epoch + 1, 0

    def take_pairs(
        self, position: SamplerPosition, *, length: int, tokens: int, random_half: bool
    ) -> tuple[tuple[DocumentSpans, DocumentSpans, Bools], SamplerPosition]:
        """Draw the next pairs of texts, each of whole sentences, for a batch of `tokens`.

        With `random_half`, half of the second texts come from another document, and the actual
        continuation is used for the next pair (as in BERT's data code). Otherwise every second text
        follows its first. A single last sentence is skipped, as nothing follows it.
        """
        if random_half and len(self.documents) < 2:
            raise InputError(
                f"Next-sentence prediction needs two documents, but {self.shards.path} has one; "
                "split the text (`firth prepare --documents`), or choose another objective."
            )
        if length < 5:
            raise UsageError(
                f"A pair with its three special tokens needs a length of at least 5, not {length}."
            )
        firsts: list[Row] = []
        seconds: list[Row] = []
        left = tokens
        for document, start, _, epoch, token in self._documents_from(position):
            if epoch > position.epoch + 1 and not firsts:
                raise InputError(
                    f"No document of {self.shards.path} has two sentences for a pair; make longer "
                    "documents (`firth prepare --documents`), or choose another objective."
                )
            bounds = self._sentences(document, start)
            while len(bounds) > 2:  # at least two sentences are left
                if left < min(length, tokens):
                    pairs = self._spans(firsts), self._spans(seconds)
                    follows = pairs[0].documents == pairs[1].documents
                    return (*pairs, follows), SamplerPosition(epoch, token)
                draws = uniform_list(derive_key(derive_key(self.seed, epoch), token), PAIR, 6)
                last, middle = _split(bounds, length - 3, draws)
                size = int(bounds[middle] - bounds[0])
                if random_half and draws[3] < 0.5:
                    second = self._random_text(document, draws[4:], max(length - 3 - size, 1))
                    last = middle  # the continuation is the next first text
                else:
                    second = document, int(bounds[middle]), int(bounds[last])
                firsts.append((document, int(bounds[0]), int(bounds[middle]), epoch, token))
                seconds.append((*second, epoch, token))
                left -= min(length, size + second[2] - second[1] + 3)
                token += int(bounds[last] - bounds[0])
                bounds = bounds[last:]
        raise AssertionError("the stream is infinite")

    def _sentences(self, document: int, start: int) -> Longs:
        """Return the sentence starts of a document from `start` on, then its end."""
        bounds = self.shards.sentences(document)
        return np.concatenate(([start], bounds[bounds > start]))

    def _random_text(self, document: int, draws: list[float], room: int) -> tuple[int, int, int]:
        """Draw a random text of about `room` tokens from another document."""
        place = int(draws[0] * (len(self.documents) - 1))
        place += self.documents[place] >= document
        other = int(self.documents[place])
        bounds = self.shards.sentences(other)
        first = int(draws[1] * (len(bounds) - 1))
        last = int(np.searchsorted(bounds, bounds[first] + room))
        return other, int(bounds[first]), int(bounds[min(last, len(bounds) - 1)])

    def _spans(self, rows: list[Row]) -> DocumentSpans:
        documents, starts, ends, epochs, tokens = np.array(rows, dtype=np.int64).reshape(-1, 5).T
        return DocumentSpans(
            documents, starts, ends, derive_keys(derive_keys(self.seed, epochs), tokens)
        )

    def gather(
        self,
        spans: DocumentSpans,
        *,
        first: int | None = None,
        last: int | None = None,
        first_everywhere: bool = True,
        last_everywhere: bool = True,
    ) -> PackedSequences:
        """Return the tokens of spans, with special tokens before (`first`) and after (`last`) each.

        Without `first_everywhere` or `last_everywhere`, only where a document begins or ends.
        """
        text = self.shards.gather(spans.documents, spans.starts, spans.ends)
        sizes = spans.ends - spans.starts
        whole = self.shards.lengths[spans.documents]
        front = (first is not None) & (first_everywhere | (spans.starts == 0))  # (S,)
        back = (last is not None) & (last_everywhere | (spans.ends == whole))
        starts = np.concatenate(([0], np.cumsum(sizes + front + back)))
        tokens = np.empty(starts[-1], dtype=np.int64)
        is_text = np.ones(len(tokens), dtype=np.bool_)
        heads, tails = starts[:-1][front], starts[1:][back] - 1
        is_text[heads] = is_text[tails] = False
        tokens[is_text] = text
        tokens[heads], tokens[tails] = first or 0, last or 0
        return PackedSequences(tokens, starts, spans.keys)

    def with_static_draws(self, packed: PackedSequences, spans: DocumentSpans) -> PackedSequences:
        """Make the random draws of a token depend on its document and its position there alone."""
        keys = derive_keys(self.seed, spans.documents)
        return replace(packed, keys=keys, first_counters=spans.starts)

    def sentence_starts(self, spans: DocumentSpans) -> Longs:
        """Return the starts of sentences in the tokens of spans; every span starts one."""
        rows, size = [], 0
        columns = (spans.documents, spans.starts, spans.ends)
        for document, start, end in zip(*(column.tolist() for column in columns), strict=True):
            bounds = self._sentences(document, start)
            rows.append(bounds[bounds < end] - start + size)
            size += end - start
        return np.concatenate(rows)


def _split(bounds: Longs, room: int, draws: list[float]) -> tuple[int, int]:
    """Return the end and the middle of a pair, as indices of sentence boundaries."""
    # One in ten is shorter, so that the model also sees short texts (Devlin et al. 2019, A.2).
    target = room if draws[0] >= 0.1 else 2 + int(draws[1] * (room - 1))
    enough = int(np.searchsorted(bounds, bounds[0] + target))
    last = min(max(enough, 2), len(bounds) - 1)
    return last, 1 + int(draws[2] * (last - 1))


def in_order(tasks: Iterator[Callable[[], Result]], workers: int = 2) -> Iterator[Result]:
    """Yield results of tasks in order; threads compute some ahead."""
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as threads:
        for task in tasks:
            pending.append(threads.submit(task))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
