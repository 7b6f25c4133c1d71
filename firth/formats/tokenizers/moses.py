"""XLM's tokenizer: Moses pre-tokenization, then character-level BPE (Lample and Conneau, 2019).

It needs the `sacremoses` library (extra `firth[xlm]`). Without it, XLM models can be loaded and
used with token ids, but not with text.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from firth.formats.tokenizers.backends import VocabularySource
from firth.formats.tokenizers.vocab_files import read_ids, read_text
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError, UsageError, storage_errors
from firth.utils.files import atomic_file, write_json

END = "</w>"
SPECIAL = tuple(f"<special{i}>" for i in range(10))
KNOWN_WORDS = 100_000  # cached words

# Punctuation of other scripts and its replacement in Moses.
PUNCTUATION = str.maketrans(
    "，、”“∶：？《》）！（；」「～’━〈〉【】％０１２３４５６７８９",
    ',,""::?"")!(;""~\'-<>[]%0123456789',
) | {ord("…"): "..."}
ANYTHING = tokenizers.Regex(r"[\s\S]+")
FULL_STOPS = re.compile(r"[。．]\s*")


class MosesPreTokenizer:
    """Split English text into words and words into BPE pieces."""

    def __init__(self, merges: Sequence[tuple[str, str]], lowercase: bool) -> None:
        import sacremoses

        self.punctuation = sacremoses.MosesPunctNormalizer(lang="en")
        self.words = sacremoses.MosesTokenizer(lang="en")
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.lowercase = lowercase
        self.pieces = lru_cache(KNOWN_WORDS)(self._pieces)

    def normalize(self, normalized: tokenizers.NormalizedString) -> None:
        """Replace a text by its pieces, separated by spaces."""
        words = self.cut(normalized.normalized)
        pieces = " ".join(piece for word in words for piece in self.pieces(word))
        normalized.replace(ANYTHING, pieces)

    def cut(self, text: str) -> Iterator[str]:
        """Split a text into words."""
        text = FULL_STOPS.sub(". ", text.translate(PUNCTUATION))
        text = self.punctuation.normalize(text)
        text = "".join(c for c in text if not unicodedata.category(c).startswith("C"))
        words = self.words.tokenize(text, return_str=False, escape=False)
        if self.lowercase:
            letters = unicodedata.normalize("NFD", " ".join(words).lower())
            bare = "".join(c for c in letters if unicodedata.category(c) != "Mn")
            words = bare.lower().split(" ")
        return filter(None, words)

    def _pieces(self, word: str) -> list[str]:
        """Split a word into pieces by applying merges in order of priority."""
        pieces = [*word[:-1], word[-1] + END]
        while len(pieces) > 1:
            best = min(pairwise(pieces), key=lambda pair: self.ranks.get(pair, math.inf))
            if best not in self.ranks:
                break
            merged: list[str] = []
            for piece in pieces:
                if merged and (merged[-1], piece) == best:
                    merged[-1] += piece
                else:
                    merged.append(piece)
            pieces = merged
        return pieces


class MosesTokenizer(Tokenizer):
    """XLM's tokenizer, saved as `vocab.json` and `merges.txt` like `transformers.XLMTokenizer`."""

    def __init__(
        self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]], config: dict[str, Any]
    ) -> None:
        self.ids, self.merges, self.config = dict(ids), merges, config
        for token in (*self.special_tokens.values(), *config["additional_special_tokens"]):
            self.ids.setdefault(token, 1 + max(self.ids.values()))

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:  # type: ignore[override]
        """The backend, built on first use."""
        try:
            moses = MosesPreTokenizer(self.merges, self.config["do_lowercase_and_remove_accent"])
        except ImportError as error:
            raise UsageError(
                "Text for XLM needs the `sacremoses` library: pip install 'firth[xlm]'."
            ) from error
        tokens = self.special_tokens
        backend = tokenizers.Tokenizer(models.WordLevel(self.ids, tokens["unk"]))
        backend.normalizer = normalizers.Normalizer.custom(moses)
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.decoder = decoders.Sequence([decoders.Replace(END, " "), decoders.Fuse()])
        backend.add_special_tokens([*tokens.values(), *self.config["additional_special_tokens"]])
        begin, end = tokens["bos"], tokens["sep"]
        backend.post_processor = processors.TemplateProcessing(
            single=[begin, "$A", end],
            pair=[begin, "$A", end, "$B:1", f"{end}:1"],
            special_tokens=[(token, self.ids[token]) for token in (begin, end)],
        )
        return backend

    def __len__(self) -> int:
        return 1 + max(self.ids.values())

    def decode(self, ids: Sequence[int], skip_specials: bool = False) -> str:
        return super().decode(ids, skip_specials).strip()

    @cached_property
    def kind(self) -> str:
        return "bpe-word"

    @cached_property
    def unknown_id(self) -> int | None:
        return self.ids[self.special_tokens["unk"]]

    @cached_property
    def fingerprint(self) -> str:
        content = json.dumps([self.ids, self.merges, self.config], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def to_json(self) -> str:
        raise UsageError(
            "XLM's tokenizer needs Moses, which `firth prepare` does not support; pre-train with "
            "another tokenizer."
        )

    def save(self, path: str | Path) -> None:
        folder = Path(path)
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "tokenizer_config.json", self.config)
            write_json(folder / "vocab.json", self.ids)
            with atomic_file(folder / "merges.txt") as file:
                file.writelines(f"{first} {second}\n".encode() for first, second in self.merges)


def read_moses(source: VocabularySource) -> MosesTokenizer:
    """Load XLM's two files; the result of a merge need not be a token."""
    folder, settings = source.file.parent, source.settings
    ids, file = read_ids(folder / "vocab.json"), folder / "merges.txt"
    if not file.is_file():
        raise InputError(f"There is no {file}, which vocab.json needs.")
    merges = []
    for number, line in enumerate(read_text(file).removesuffix("\n").split("\n"), start=1):
        pair = line.split()[:2]
        if len(pair) < 2:
            raise InputError(f"{file}, line {number}: expected two pieces, not {line!r}.")
        merges.append((pair[0], pair[1]))
    extra = [token.content for token in settings.extra()] or list(SPECIAL)
    added = {token.content: id for id, token in settings.added.items()}
    if clash := next((token for token, id in added.items() if ids.get(token, id) != id), None):
        raise InputError(f"{folder} gives its added token {clash!r} two ids.")
    needed = {f"{role}_token": source.token(role) for role in ("unk", "bos", "sep")}
    config = {
        "tokenizer_class": "XLMTokenizer",
        "do_lowercase_and_remove_accent": settings.flag("do_lowercase_and_remove_accent", True),
        **needed,
        **{f"{role}_token": token.content for role, token in source.roles.items()},
        "additional_special_tokens": list(dict.fromkeys([*extra, *added])),
    }
    return MosesTokenizer(ids | added, merges, config)
