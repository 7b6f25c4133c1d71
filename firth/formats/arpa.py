"""ARPA files: n-gram models as text, as KenLM, SRILM and others read and write them.

    \\data\\
    ngram 1=5
    ngram 2=4

    \\1-grams:
    -1.0791812	<unk>	0
    -99	<s>	-0.30103
    …
    \\2-grams:
    -0.30103	<s> a
    …
    \\end\\

Each line has the base-10 logarithm of a probability, the words, and but for the highest order the
logarithm of the back-off weight. <s> begins and </s> ends a text, and <unk> is any unknown word.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import tokenizers
from numpy.typing import NDArray

from firth.models.ngram.config import NgramConfig
from firth.models.ngram.kneser_ney import SmoothedOrder
from firth.models.ngram.model import NgramModel
from firth.tokenizers.special_tokens import with_special_tokens
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError, MismatchError
from firth.utils.files import atomic_file
from firth.utils.rng import Longs

BLOCK = 1 << 16  # n-grams that are written at a time
NEVER = -99.0  # log10 of the probability of <s>, which is never predicted
MISSING_UNKNOWN = -100.0  # log10 of the probability of <unk> if a file has none, as in KenLM
BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
ENDINGS = (".arpa", ".arpa.gz")
SPACE = re.compile(r"\s")


# ---- writing


def write_arpa(model: NgramModel, tokenizer: Tokenizer, path: Path) -> None:
    """Write an n-gram model as an ARPA file; white space in a token is written as <0x20>."""
    words, bos = _words(model, tokenizer), model.config.bos_token_id
    predicted = np.isfinite(model.orders[0].log_probs.numpy())
    first = np.flatnonzero(predicted)
    counts = [len(first) + (bos is not None), *model.config.ngram_counts[1:]]
    with atomic_file(path) as file:
        lines = [f"ngram {n}={count}" for n, count in enumerate(counts, start=1)]
        file.write("\n".join(["\\data\\", *lines, ""]).encode())
        for n in range(1, model.config.order + 1):
            file.write(f"\n\\{n}-grams:\n".encode())
            if n == 1:
                file.write(_unigrams(model, words, first).encode())
                continue
            for begin in range(0, len(model.orders[n - 1].keys), BLOCK):
                numbers = np.arange(begin, min(begin + BLOCK, counts[n - 1]))
                file.write(_ngrams(model, words, n, numbers).encode())
        file.write(b"\n\\end\\\n")


def _words(model: NgramModel, tokenizer: Tokenizer) -> list[str]:
    """Return the words of the file by token id."""
    config = model.config
    tokens = [tokenizer.backend.id_to_token(id) or f"<{id}>" for id in range(config.vocab_size)]
    words = [SPACE.sub(lambda m: f"<0x{ord(m[0]):02x}>", token) for token in tokens]
    names = {tokenizer.unknown_id: UNKNOWN, config.bos_token_id: BEGIN, config.eos_token_id: END}
    for id, name in names.items():
        if id is not None:
            words[id] = name
    return words


def _unigrams(model: NgramModel, words: list[str], ids: Longs) -> str:
    """Format the unigrams; a token that both begins and ends a text has two lines."""
    bos = model.config.bos_token_id
    rows = _rows(model, 1, ids, [words[id] for id in ids.tolist()])
    if bos is None:
        return rows
    weights = [f"{weight:.7g}" for weight in _log10(model, 1, np.array([bos]), "backoffs")]
    return "\t".join([f"{NEVER:.0f}", BEGIN, *weights]) + f"\n{rows}"


def _ngrams(model: NgramModel, words: list[str], n: int, numbers: Longs) -> str:
    columns = ngram_words(model, n, numbers).T.tolist()  # (n, B)
    texts = [list(map(words.__getitem__, column)) for column in columns]
    bos = model.config.bos_token_id
    texts[0] = [BEGIN if id == bos else word for id, word in zip(columns[0], texts[0], strict=True)]
    return _rows(model, n, numbers, [" ".join(row) for row in zip(*texts, strict=True)])


def _rows(model: NgramModel, n: int, numbers: Longs, texts: list[str]) -> str:
    probs, weights = (_log10(model, n, numbers, name) for name in ("log_probs", "backoffs"))
    if not weights:
        pairs = zip(probs, texts, strict=True)
        return "".join(f"{prob:.7g}\t{text}\n" for prob, text in pairs)
    triples = zip(probs, texts, weights, strict=True)
    return "".join(f"{prob:.7g}\t{text}\t{weight:.7g}\n" for prob, text, weight in triples)


def _log10(model: NgramModel, n: int, numbers: Longs, name: str) -> list[float]:
    values = getattr(model.orders[n - 1], name).numpy()
    return (values[numbers].astype(np.float64) / math.log(10)).tolist() if len(values) else []


def ngram_words(model: NgramModel, n: int, numbers: Longs) -> Longs:
    """Return the token ids of n-grams of order n by their numbers."""  # (B,) -> (B, n)
    columns = []
    for order in range(n, 1, -1):
        numbers, words = np.divmod(
            model.orders[order - 1].keys.numpy()[numbers], model.config.vocab_size
        )
        columns.append(words)
    return np.stack([numbers, *columns[::-1]], axis=1)


# ---- reading


@dataclass
class _Section:
    """The n-grams of one order as they are in the file."""

    words: list[list[int]] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


class ArpaReader:
    """Reads an ARPA file line by line; errors name the line."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 0
        self.ids: dict[str, int] = {}
        self.counts: list[int] = []

    def read(self) -> tuple[NgramModel, Tokenizer]:
        """Return the model, and a tokenizer that splits texts at white space."""
        opener = gzip.open if self.path.suffix == ".gz" else open
        try:
            with opener(self.path, "rt", encoding="utf-8") as file:
                sections = self._sections(file)
        except (OSError, UnicodeDecodeError, EOFError) as error:
            raise InputError(f"{self.path} cannot be read ({error}).") from error
        model, tokenizer = self._model(sections), _tokenizer(self.ids)
        begin = model.config.bos_token_id
        return model, with_special_tokens(tokenizer, [] if begin is None else [begin], [])

    def _error(self, what: str) -> InputError:
        return InputError(f"{self.path}, line {self.number}: {what}.")

    def _lines(self, file: IO[str]) -> Iterator[str]:
        for line in file:
            self.number += 1
            if stripped := line.strip(" \t\r\n"):
                yield stripped

    def _sections(self, file: IO[str]) -> list[_Section]:
        lines, sections = self._lines(file), list[_Section]()
        if next(lines, "") != "\\data\\":
            raise self._error("an ARPA file begins with \\data\\")
        for line in lines:
            if match := re.fullmatch(r"ngram (\d+)\s*=\s*(\d+)", line):
                self.counts.append(int(match[2]))
            elif re.fullmatch(r"\\\d+-grams:", line):
                self._check_complete(sections)
                sections.append(_Section())
            elif line == "\\end\\":
                self._check_complete(sections)
                break
            else:
                self._add(sections, line)
        if len(sections) != len(self.counts) or not sections:
            raise self._error(
                f"the file ends after {len(sections)} of {len(self.counts)} orders; it is cut off"
            )
        return sections

    def _check_complete(self, sections: list[_Section]) -> None:
        if len(sections) > len(self.counts):
            raise self._error("the header does not name this order")
        if sections and len(sections[-1].probs) != (count := self.counts[len(sections) - 1]):
            found = len(sections[-1].probs)
            raise self._error(f"there are {found:,} {len(sections)}-grams, not {count:,}")

    def _add(self, sections: list[_Section], line: str) -> None:
        n, parts = len(sections), line.split()
        if not n or len(parts) not in (n + 1, n + 2):
            raise self._error(f"this is no {n}-gram with a probability: {line!r:.60}")
        try:
            values = [float(parts[0]), float(parts[n + 1]) if len(parts) == n + 2 else 0.0]
        except ValueError as error:
            raise self._error(f"this is not a number ({error})") from error
        if not all(map(math.isfinite, values)) or values[0] > 0:
            raise self._error(f"{parts[0]} is not the logarithm of a probability")
        words, section = parts[1 : n + 1], sections[-1]
        if n == 1 and self.ids.setdefault(words[0], len(self.ids)) != len(section.probs):
            raise self._error(f"the word {words[0]!r} is there twice")
        if unknown := [word for word in words if word not in self.ids]:
            raise self._error(f"the word {unknown[0]!r} is not among the 1-grams")
        section.words.append([self.ids[word] for word in words])
        section.probs.append(values[0])
        section.weights.append(values[1])

    def _model(self, sections: list[_Section]) -> NgramModel:
        if UNKNOWN not in self.ids:
            self.ids[UNKNOWN] = len(self.ids)
            sections[0].probs.append(MISSING_UNKNOWN)
            sections[0].weights.append(0.0)
        size, orders = len(self.ids), list[SmoothedOrder]()
        for n, section in enumerate(sections, start=1):
            keys = np.arange(size) if n == 1 else self._keys(n, section, orders)
            sorting = np.argsort(keys)
            if n > 1 and (np.diff(keys[sorting]) == 0).any():
                raise InputError(f"{self.path} has a {n}-gram twice.")
            probs, weights = (
                np.array(values, dtype=np.float32)[sorting] * np.float32(math.log(10))
                for values in (section.probs, section.weights)
            )
            contexts = weights if n < len(sections) else weights[:0]
            orders.append(SmoothedOrder(keys[sorting], probs, contexts))
        bos, eos = self.ids.get(BEGIN), self.ids.get(END)
        config = NgramConfig(order=len(orders), vocab_size=size, bos_token_id=bos, eos_token_id=eos)
        return NgramModel.from_orders(config, orders)

    def _keys(self, n: int, section: _Section, orders: list[SmoothedOrder]) -> Longs:
        """Return the keys of n-grams; their contexts must be in the order below."""
        words = np.array(section.words, dtype=np.int64).reshape(-1, n)
        numbers = words[:, 0]
        for order in range(2, n):
            wanted = numbers * len(self.ids) + words[:, order - 1]
            keys = np.append(orders[order - 1].keys, -1)  # never empty
            numbers = np.searchsorted(keys[:-1], wanted)
            self._check_contexts(n, keys[numbers] == wanted, words)
        return numbers * len(self.ids) + words[:, -1]

    def _check_contexts(self, n: int, known: NDArray[np.bool_], words: Longs) -> None:
        if not known.all():
            names = list(self.ids)
            row = " ".join(names[id] for id in words[int(np.argmin(known))].tolist())
            raise MismatchError(
                f"{self.path} has the {n}-gram {row!r}, but not its first words as a shorter one."
            )


def _tokenizer(ids: dict[str, int]) -> Tokenizer:
    """Return a tokenizer of words that are separated by white space."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, UNKNOWN))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    roles = {"unk": UNKNOWN, "bos": BEGIN, "eos": END}
    present = {role: token for role, token in roles.items() if token in ids}
    backend.add_special_tokens(list(present.values()))
    return Tokenizer(backend, {f"{role}_token": token for role, token in present.items()})
