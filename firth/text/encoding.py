"""Documents to tokens, sentence by sentence: what each worker process does for `prepare`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from firth.streams import in_windows
from firth.text.corpus import Batch, Position, Report, cleaned
from firth.text.counting import PIECE
from firth.text.sentences import sentence_starts
from firth.text.shards import Passage, token_type

LONGEST_SENTENCE = 1 << 16  # characters; what has no sentence end for so long is cut at a space
TOGETHER = 1 << 18  # characters for the tokenizer at a time: it needs much memory for each
MOST_KNOWN = 400_000  # pieces whose tokens are remembered, some 100 MB
LONGEST_KNOWN = 64  # characters of such a piece

# Where pieces and sentences begin, and what may stand between them.
PROBE = "Hello there.  Two spaces,\na line\n\nand (more) 3.14 words! Ends"

Flags = NDArray[np.uint8]  # one for each document: 0 keep it, or a key of DUPLICATE
DUPLICATE = {1: "exact duplicate", 2: "near duplicate"}


class Work(NamedTuple):
    """A batch, the split its documents belong to, and which of them are duplicates."""

    batch: Batch
    split: str
    flags: Flags | None


@dataclass(frozen=True)
class Encoded:
    """What became of a batch of documents."""

    passages: dict[str, Passage]  # by split
    report: Report
    documents: int  # in the batch, kept or not
    end: Position
    bytes_read: int


def encoder(tokenizer: str, clean: bool, valid_fraction: float) -> Callable[[Work], Encoded]:
    """A function that encodes batches with the tokenizer of this JSON text.

    Of training documents, `valid_fraction` go to the validation split. A hash of the text decides,
    so the same document is always on the same side, wherever it stands.
    """
    backend = tokenizers.Tokenizer.from_str(tokenizer)
    backend.encode_special_tokens = True  # a `[MASK]` in raw text is only letters, not a mask
    lookup = Lookup(backend)

    def encode(work: Work) -> Encoded:
        batch = work.batch
        report = Report(repaired=batch.repaired)
        texts = list(cleaned(batch.texts, clean, report))
        kept: dict[str, list[str]] = {"train": [], "valid": []}
        flags = [0] * len(texts) if work.flags is None else work.flags.tolist()
        for text, flag in zip(texts, flags, strict=True):
            if not text:
                report.removed["empty"] += 1
            elif flag:
                report.removed[DUPLICATE[flag]] += 1
            else:
                report.count(text, clean)
                valid = work.split == "valid" or _share(text) < valid_fraction
                kept["valid" if valid else "train"].append(text)
        passages = {split: encode_documents(lookup, texts) for split, texts in kept.items()}
        return Encoded(passages, report, len(texts), batch.end, batch.bytes_read)

    return encode


class Lookup:
    """Encodes text by looking up its pieces; only new ones go through the tokenizer.

    Where a pre-tokenizer cuts at white space, pieces that begin with it have the same tokens
    wherever they stand, and most pieces of a text have stood there before. Llama's and Gemma's do
    not cut there: `cuts` is False, and documents are encoded whole.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.known: dict[str, list[int]] = {}
        largest = max(backend.get_vocab().values(), default=-1)  # there may be gaps below it
        self.type = token_type(1 + largest)
        pieces = backend.encode_batch(PIECE.findall(PROBE), add_special_tokens=False)
        whole = backend.encode(PROBE, add_special_tokens=False)
        self.cuts = [id for piece in pieces for id in piece.ids] == whole.ids

    def encode(self, sentences: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens of all sentences, end to end, and how many each has."""
        pieces = [PIECE.findall(sentence) for sentence in sentences]
        every = list(chain.from_iterable(pieces))
        new = list(set(every) - self.known.keys())
        for group in in_windows(new, len, TOGETHER):
            encodings = self.backend.encode_batch_fast(group, add_special_tokens=False)
            self.known.update(zip(group, (encoding.ids for encoding in encodings), strict=True))
        ids = list(map(self.known.__getitem__, every))
        tokens = np.fromiter(chain.from_iterable(ids), dtype=np.int64)
        ends = np.cumsum([0, *map(len, ids)])[np.cumsum([0, *map(len, pieces)])]
        self._forget(new)
        return tokens, np.diff(ends)

    def _forget(self, new: list[str]) -> None:
        for piece in new:
            if len(piece) > LONGEST_KNOWN:
                del self.known[piece]
        if len(self.known) > MOST_KNOWN:
            self.known.clear()


def encode_documents(lookup: Lookup, texts: Sequence[str]) -> Passage:
    """Tokens of all texts, end to end, with the lengths of documents and sentences.

    Sentences are encoded one by one. Each begins with the white space before it, where every
    pre-tokenizer cuts, so together they give the tokens of the whole document. (A sentence that
    follows 。 without a space gets Unigram's ▁ in front: the one exception.)
    """
    sentences = [list(_sentences(text)) for text in texts]
    tokens, lengths = encode_parts(lookup, sentences)
    bounds = np.cumsum([0, *map(len, sentences)])
    documents = np.diff(np.cumsum([0, *lengths])[bounds])
    return Passage(
        tokens.astype(lookup.type),
        documents[documents > 0],
        lengths[lengths > 0],
    )


def encode_parts(
    lookup: Lookup, texts: Sequence[Sequence[str]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens of texts that are given in parts, end to end, and how many each part has."""
    if lookup.cuts:
        return lookup.encode(list(chain.from_iterable(texts)))
    return _encode_whole(lookup.backend, ["".join(parts) for parts in texts], texts)


def _encode_whole(
    backend: tokenizers.Tokenizer, texts: Sequence[str], sentences: Sequence[Sequence[str]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tokens of whole documents; a token belongs to the sentence in which it begins."""
    ids: list[int] = []
    lengths: list[int] = []
    pairs = zip(texts, sentences, strict=True)
    for group in in_windows(pairs, lambda pair: len(pair[0]), TOGETHER):
        encodings = backend.encode_batch([text for text, _ in group], add_special_tokens=False)
        for encoding, (_, parts) in zip(encodings, group, strict=True):
            begins = [begin for begin, _ in encoding.offsets]
            ends = np.searchsorted(begins, np.cumsum([len(part) for part in parts]))
            ends[-1:] = len(begins)
            ids += encoding.ids
            lengths += np.diff(ends, prepend=0).tolist()
    return np.array(ids, dtype=np.int64), np.array(lengths, dtype=np.int64)


def _sentences(text: str) -> Iterator[str]:
    for start, end in pairwise([*sentence_starts(text), len(text)]):
        while end - start > LONGEST_SENTENCE:
            space = text.rfind(" ", start + 1, start + LONGEST_SENTENCE)
            cut = space if space > 0 else start + LONGEST_SENTENCE
            yield text[start:cut]
            start = cut
        yield text[start:end]


def _share(text: str) -> float:
    """A number from 0 to 1 that depends on the text alone."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
