"""Tokenize documents sentence by sentence: the worker processes of `firth prepare`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from firth.data.corpus import CorpusPosition, CorpusReport, DocumentBatch, clean_texts
from firth.data.sentences import sentence_starts
from firth.data.shards import TokenizedDocuments, token_type
from firth.tokenizers.counting import PIECE
from firth.tokenizers.normalization import is_nfc, without_nfc
from firth.tokenizers.token_cache import TokenCache
from firth.tokenizers.tokenizer import encode_batch
from firth.utils.streams import bounded_batches

MAX_SENTENCE_CHARACTERS = 1 << 16  # longer sentences are cut at a space
BATCH_CHARACTERS = 1 << 18  # per call of the tokenizer, which needs much memory per character

# A test text with all kinds of white space, to find out whether a tokenizer splits there.
PROBE = "Hello there.  Two spaces,\na line\n\nand (more) 3.14 words! Ends"

Flags = NDArray[np.uint8]  # one per document: 0 to keep it, or a key of DUPLICATE
REMOVED, TRAIN, VALID = 0, 1, 2  # the split of a document
DUPLICATE = {1: "exact duplicate", 2: "near duplicate"}


class EncodingJob(NamedTuple):
    """A batch of documents, their split, and flags for duplicates."""

    batch: DocumentBatch
    split: str
    flags: Flags | None


@dataclass(frozen=True)
class EncodedDocuments:
    """A tokenized batch of documents."""

    passages: dict[str, TokenizedDocuments]  # by split
    report: CorpusReport
    end: CorpusPosition
    bytes_read: int
    # Of each document in the batch: its split (0: removed), and its number of tokens.
    splits: NDArray[np.uint8]
    lengths: NDArray[np.int64]

    @property
    def documents(self) -> int:
        """The number of documents in the batch, kept or not."""
        return len(self.splits)


def make_encoder(
    tokenizer: str, clean: bool, valid_fraction: float
) -> Callable[[EncodingJob], EncodedDocuments]:
    """Return a function that encodes batches with a tokenizer, given as JSON.

    A fraction `valid_fraction` of the training documents goes to the validation split. A hash of
    the text decides, so identical documents are always in the same split.
    """
    backend = tokenizers.Tokenizer.from_str(tokenizer)
    backend.encode_special_tokens = True  # `[MASK]` in raw text is plain text, not a mask
    cached = CachedEncoder(backend)

    def encode(job: EncodingJob) -> EncodedDocuments:
        batch = job.batch
        report = batch.report()
        texts = list(clean_texts(batch.texts, clean, report))
        splits = np.full(len(texts), REMOVED, dtype=np.uint8)
        flags = [0] * len(texts) if job.flags is None else job.flags.tolist()
        for number, (text, flag) in enumerate(zip(texts, flags, strict=True)):
            if not text:
                report.removed["empty"] += 1
            elif flag:
                report.removed[DUPLICATE[flag]] += 1
            else:
                report.count(text, clean)
                valid = job.split == "valid" or _hash_fraction(text) < valid_fraction
                splits[number] = VALID if valid else TRAIN
        lengths = np.zeros(len(texts), dtype=np.int64)
        passages = {}
        for split, code in (("train", TRAIN), ("valid", VALID)):
            rows = np.flatnonzero(splits == code)
            passage, lengths[rows] = _encode_documents(cached, [texts[row] for row in rows])
            if batch.source is not None:
                passage.sources = np.full(len(passage.documents), batch.source, dtype=np.uint16)
            passages[split] = passage
        return EncodedDocuments(passages, report, batch.end, batch.bytes_read, splits, lengths)

    return encode


class CachedEncoder:
    """Encode text by looking up its words in a cache; only new words go through the tokenizer.

    This is exact if the pre-tokenizer splits at white space: then a word with the space before it
    has the same tokens everywhere. Llama's and Gemma's tokenizers do not split there (`cuts` is
    False), so their documents are encoded as a whole. Of a byte-level BPE with `add_prefix_space`,
    the space is put before documents here (`prefix`).
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        largest = max(backend.get_vocab().values(), default=-1)  # ids may have gaps
        self.type = token_type(1 + largest)
        self.prefix, self.piece_backend, self.nfc_backend = _backends(backend)
        pieces = encode_batch(self.piece_backend, PIECE.findall(self.prefix + PROBE), offsets=True)
        [whole] = encode_batch(backend, [PROBE], offsets=True)
        self.cuts = [id for piece in pieces for id in piece.ids] == whole.ids
        self.cache = TokenCache()

    def with_prefix(self, parts: Sequence[str]) -> Sequence[str]:
        """Return the parts of a text, after the space that the tokenizer puts before the text."""
        if not self.prefix:
            return parts
        normalizer = self.backend.normalizer
        normalized = map(normalizer.normalize_str, parts) if normalizer else parts
        beginning = next(filter(None, normalized), " ")  # an empty text gets no space
        return parts if beginning[0] == " " else [self.prefix + parts[0], *parts[1:]]

    def encode(self, sentences: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the concatenated tokens of all sentences and the number of tokens of each."""
        if self.cache.is_full or not self.cache.is_complete:  # incomplete after an error
            self.cache = TokenCache()
        pieces = [PIECE.findall(sentence) for sentence in sentences]
        numbers = self.cache.look_up(chain.from_iterable(pieces))
        self._encode_missing()
        tokens, lengths = self.cache.tokens(numbers)
        ends = np.append(0, np.cumsum(lengths))
        return tokens, np.diff(ends[np.cumsum([0, *map(len, pieces)])])

    def _encode_missing(self) -> None:
        new = self.cache.missing()
        for group in bounded_batches(new, len, max_size=BATCH_CHARACTERS, max_items=len(new)):
            backend = self.nfc_backend if all(map(is_nfc, group)) else self.piece_backend
            self.cache.add(group, [encoding.ids for encoding in encode_batch(backend, group)])


def _backends(
    backend: tokenizers.Tokenizer,
) -> tuple[str, tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """Return the space before a text (or ""), a tokenizer of its pieces and one of NFC pieces.

    They share the model and leave out added tokens, so none may be recognized in text.
    """
    added = backend.get_added_tokens_decoder().values()
    if not backend.encode_special_tokens or not all(token.special for token in added):
        return "", backend, backend
    splitter, prefix = backend.pre_tokenizer, ""
    if isinstance(splitter, pre_tokenizers.ByteLevel) and splitter.add_prefix_space:
        splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitter.use_regex)
        prefix = " "
    pieces, nfc_pieces = (tokenizers.Tokenizer(backend.model) for _ in range(2))
    pieces.normalizer, nfc_pieces.normalizer = backend.normalizer, without_nfc(backend.normalizer)
    for part in (pieces, nfc_pieces):
        part.pre_tokenizer, part.post_processor = splitter, backend.post_processor
    return prefix, pieces, nfc_pieces


def encode_documents(encoder: CachedEncoder, texts: Sequence[str]) -> TokenizedDocuments:
    """Return the concatenated tokens of all texts with the lengths of documents and sentences.

    Sentences are encoded one by one. Each begins with the white space before it, where
    pre-tokenizers split, so together they give the tokens of the whole document. (One exception: a
    sentence after 。 without a space gets Unigram's ▁ in front.)
    """
    return _encode_documents(encoder, texts)[0]


def _encode_documents(
    encoder: CachedEncoder, texts: Sequence[str]
) -> tuple[TokenizedDocuments, NDArray[np.int64]]:
    """Return tokenized documents, those without tokens left out, and the tokens of each text."""
    sentences = [list(_sentences(text)) for text in texts]
    tokens, lengths = encode_parts(encoder, sentences)
    bounds = np.cumsum([0, *map(len, sentences)])
    documents = np.diff(np.cumsum([0, *lengths])[bounds])
    kept = TokenizedDocuments(
        tokens.astype(encoder.type), documents[documents > 0], lengths[lengths > 0]
    )
    return kept, documents


def encode_parts(
    encoder: CachedEncoder, texts: Sequence[Sequence[str]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Encode texts given in parts; return concatenated tokens and the number of each part."""
    if encoder.cuts:
        return encoder.encode(list(chain.from_iterable(map(encoder.with_prefix, texts))))
    return _encode_whole(encoder.backend, ["".join(parts) for parts in texts], texts)


def _encode_whole(
    backend: tokenizers.Tokenizer, texts: Sequence[str], sentences: Sequence[Sequence[str]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Encode whole documents; a token belongs to the sentence in which it begins."""
    ids: list[int] = []
    lengths: list[int] = []
    pairs = zip(texts, sentences, strict=True)
    for group in bounded_batches(pairs, lambda pair: len(pair[0]), max_size=BATCH_CHARACTERS):
        encodings = encode_batch(backend, [text for text, _ in group], offsets=True)
        for encoding, (_, parts) in zip(encodings, group, strict=True):
            begins = [begin for begin, _ in encoding.offsets]
            ends = np.searchsorted(begins, np.cumsum([len(part) for part in parts]))
            ends[-1:] = len(begins)
            ids += encoding.ids
            lengths += np.diff(ends, prepend=0).tolist()
    return np.array(ids, dtype=np.int64), np.array(lengths, dtype=np.int64)


def _sentences(text: str) -> Iterator[str]:
    for start, end in pairwise([*sentence_starts(text), len(text)]):
        while end - start > MAX_SENTENCE_CHARACTERS:
            space = text.rfind(" ", start + 1, start + MAX_SENTENCE_CHARACTERS)
            cut = space if space > 0 else start + MAX_SENTENCE_CHARACTERS
            yield text[start:cut]
            start = cut
        yield text[start:end]


def _hash_fraction(text: str) -> float:
    """Hash a text to a number in [0, 1)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
