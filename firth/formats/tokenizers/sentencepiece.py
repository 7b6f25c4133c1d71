"""Read SentencePiece model files without the library (Kudo and Richardson, 2018).

The file is a protocol buffer: a sequence of fields with number, type and value, possibly nested.
Only the fields that affect the encoding of text are read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from firth.utils.errors import InputError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
ALGORITHMS = {1: "unigram", 2: "bpe"}
MAX_BYTES = 64 << 20
MAX_PIECE_CHARACTERS = 512  # characters
ROLES = {40: ("unk", 0), 41: ("bos", 1), 42: ("eos", 2), 43: ("pad", -1)}  # number: role, default
NODES_PER_STEP = 4096  # nodes of a trie at a time

Data = memoryview | bytes


class SentencePieceToken(NamedTuple):
    """One piece of the vocabulary; its index is its id."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """A SentencePiece model: vocabulary, algorithm and normalization."""

    pieces: list[SentencePieceToken]
    algorithm: str  # unigram or bpe
    roles: dict[str, int]  # special token ids by role
    byte_fallback: bool  # characters without a piece are encoded as bytes
    charsmap: bytes  # the normalization, as a trie; empty: none
    dummy_prefix: bool  # add a space before the text
    squeeze: bool  # remove leading, trailing and repeated spaces

    @property
    def scored(self) -> list[tuple[str, float]]:
        """The pieces with their scores."""
        return [(piece.text, piece.score) for piece in self.pieces]

    @property
    def symbols(self) -> list[tuple[str, bool]]:
        """Pieces that are matched before tokenization, and whether each is a control symbol."""
        kinds = (CONTROL, USER_DEFINED)
        return [(p.text, p.type == CONTROL) for p in self.pieces if p.type in kinds]

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """The merges of a BPE vocabulary: all splits of a piece into two, in order of ids."""
        known = {piece.text for piece in self.pieces}
        return [
            (text[:end], text[end:])
            for text, _, _ in self.pieces
            for end in range(1, len(text))
            if text[:end] in known and text[end:] in known
        ]


def read_pieces(file: Path) -> SentencePieceModel:
    """Read a SentencePiece model file."""
    if file.stat().st_size > MAX_BYTES:
        raise InputError(f"{file} is too large to be a vocabulary.")
    try:
        return _model(memoryview(file.read_bytes()))
    except ValueError as error:
        raise InputError(
            f"{file} is not a SentencePiece model ({error}); download it again, or save the "
            "tokenizer as tokenizer.json."
        ) from error


def _model(data: Data) -> SentencePieceModel:
    pieces: list[SentencePieceToken] = []
    trainer: Data = b""
    normalizer: Data = b""
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_bytes(value)))
        elif number == 2:
            trainer = _bytes(value)
        elif number == 3:
            normalizer = _bytes(value)
    if not pieces:
        raise ValueError("it has no pieces")
    how, before = dict(_fields(trainer)), dict(_fields(normalizer))
    algorithm = ALGORITHMS.get(_number(how.get(3, 1)))
    if algorithm is None:
        raise ValueError("it is neither a unigram nor a BPE model")
    ids = {role: _number(how.get(field, default)) for field, (role, default) in ROLES.items()}
    if not 0 <= ids["unk"] < len(pieces):
        raise ValueError("its unknown piece is not among its pieces")
    charsmap = bytes(_bytes(before.get(2, b"")))
    if charsmap:
        _check_charsmap(charsmap)
    return SentencePieceModel(
        pieces=pieces,
        algorithm=algorithm,
        roles={role: id for role, id in ids.items() if 0 <= id < len(pieces)},
        byte_fallback=bool(how.get(35, False)),
        charsmap=charsmap,
        dummy_prefix=bool(before.get(3, True)),
        squeeze=bool(before.get(4, True)),
    )


def _piece(data: Data) -> SentencePieceToken:
    fields = dict(_fields(data))
    text = str(_bytes(fields.get(1, b"")), "utf-8")
    if not text or len(text) > MAX_PIECE_CHARACTERS:
        raise ValueError(f"a piece has {len(text)} characters")
    stored = bytes(_bytes(fields.get(2, b"\0\0\0\0")))
    score = struct.unpack("<f", stored)[0] if len(stored) == 4 else math.nan
    if not math.isfinite(score):
        raise ValueError(f"the score of {text!r} is not a number")
    return SentencePieceToken(text, score, _number(fields.get(3, NORMAL)))


def _fields(data: Data) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: an int for a varint, otherwise the bytes of the value.

    >>> [(number, value) for number, value in _fields(memoryview(bytes([8, 150, 1])))]
    [(1, 150)]
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of the unknown type {kind}")
        if not 0 <= size <= len(data) - at:
            raise ValueError("it ends too early")
        yield number, data[at : at + size]
        at += size


def _varint(data: Data, at: int) -> tuple[int, int]:
    """Decode a varint (seven bits per byte, lowest first); return it and the next position."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends too early")
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            # Negative numbers are stored as 64-bit two's complement.
            return number - (1 << 64) if number >> 63 else number, at
    raise ValueError("a number has no end")


def _bytes(value: Any) -> Data:
    if not isinstance(value, Data):
        raise ValueError("a number stands where bytes should be")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes stand where a number should be")
    return value


def _check_charsmap(data: bytes) -> None:
    """Check the whole trie, because the `tokenizers` library does not.

    It is a double array (Yata et al., 2007): its size in four bytes, units of four bytes, then the
    zero-terminated replacements. A unit holds a label and the offset of its children; a leaf holds
    the offset of the replacement.
    """
    size = int.from_bytes(data[:4], "little")
    texts = np.frombuffer(data, np.uint8, offset=min(len(data), 4 + size))
    if size % 4 or not size or not len(texts) or texts[-1]:
        raise ValueError("its normalisation is damaged")
    units = np.frombuffer(data, "<u4", count=size // 4, offset=4).astype(np.int64)
    labels = np.arange(1, 256)
    seen = np.zeros(len(units), dtype=np.bool_)
    waiting = np.zeros(1, dtype=np.int64)
    while waiting.size:
        nodes, waiting = waiting[:NODES_PER_STEP], waiting[NODES_PER_STEP:]
        seen[nodes] = True
        unit = units[nodes]
        base = nodes ^ ((unit >> 10) << ((unit & 1 << 9) >> 6))
        if ((base | 255) >= len(units)).any():
            raise ValueError("its normalisation is damaged")
        places = units[base[(unit & 1 << 8) > 0]] & 0x7FFFFFFF
        if (places >= len(texts)).any() or ((texts[places] & 0xC0) == 0x80).any():
            raise ValueError("its normalisation is damaged")
        children = base[:, None] ^ labels  # (nodes, 255)
        found = np.unique(children[units[children] & 0x800000FF == labels])
        waiting = np.concatenate([waiting, found[~seen[found]]])
        seen[found] = True
