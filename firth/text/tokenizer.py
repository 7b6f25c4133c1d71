"""The tokenizer people hold: text to ids and back, and its special tokens by role.

On disk it is a directory with `tokenizer.json` and `tokenizer_config.json`, which
`transformers.AutoTokenizer` opens as it is. The machinery is the `tokenizers` library's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from firth.draws import Bools, Longs
from firth.errors import InputError, Misuse, storage_errors
from firth.files import atomic_file, write_json
from firth.text.tokenizer_files import ROLES, read_settings

SENTINEL = "<extra_id_{}>"

# Which tokens begin a word; punctuation is a word of its own. In bpe-word, `</w>` tells the end.
WORD_BEGINS: dict[str, Callable[[str], bool]] = {
    "wordpiece": lambda token: not token.startswith("##"),
    "bpe": lambda token: token[:1] in "ĠĊ" or not token[:1].isalnum(),
    "bpe-word": lambda token: False,
    "unigram": lambda token: token[:1] == "▁" or not token[:1].isalnum(),
    "char": lambda token: not token.isalnum(),
}


class Piece(NamedTuple):
    """One token of a text."""

    token: str  # as the vocabulary has it
    id: int
    known: bool  # False: the text there has no token of its own


@dataclass(frozen=True)
class Coverage:
    """How well a vocabulary fits some text."""

    words: int
    tokens: int
    unknown: int

    @property
    def fertility(self) -> float:
        """Tokens per word."""
        return self.tokens / max(1, self.words)

    @property
    def unknown_rate(self) -> float:
        """The share of tokens that stand for text the vocabulary cannot spell."""
        return self.unknown / max(1, self.tokens)


@dataclass(frozen=True)
class Vocabulary:
    """What an objective must know of a tokenizer: its special ids, and where words begin."""

    ids: dict[str, int]  # of the special token of each role
    sentinels: Longs  # (K,) T5's, the first one first
    special: Bools  # (V,) never hidden, never predicted
    begins: Bools  # (V,) stands at the beginning of a word
    ends: Bools  # (V,) stands at the end of one

    def id(self, *roles: str) -> int:
        """The id of the first of these roles that has one."""
        for role in roles:
            if role in self.ids:
                return self.ids[role]
        raise Misuse(
            f"This tokenizer has no {' or '.join(roles)} token, which the objective needs; "
            "train one with other --specials (bert and roberta have a mask)."
        )


class Tokenizer:
    """A trained tokenizer.

    >>> backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "hi": 1}, "<unk>"))
    >>> Tokenizer(backend, {"unk_token": "<unk>"}).encode("hi")
    [1]
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.config = config

    @classmethod
    def found(cls, path: str | Path) -> bool:
        """Whether a directory holds a tokenizer, in whatever files."""
        from firth.text.foreign import FILES

        return any((Path(path) / name).is_file() for name in ("tokenizer.json", *FILES))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Open a directory: its `tokenizer.json` or, without one, the files of its family."""
        from firth.text.foreign import open_foreign, roles_beside

        folder = Path(path)
        file = folder / "tokenizer.json"
        if not cls.found(folder):
            what = "holds no tokenizer.json" if folder.is_dir() else "is not a directory"
            raise InputError(
                f"{folder} {what}: a tokenizer is what `firth tokenizer train` writes."
            )
        if not file.is_file():
            return open_foreign(folder)
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more precise
            raise InputError(f"{file} is not a tokenizer: {error}.") from error
        return cls(backend, roles_beside(folder, read_settings(folder), backend))

    def save(self, path: str | Path) -> None:
        """Write the directory that `load` and `transformers.AutoTokenizer` open."""
        folder = Path(path)
        with storage_errors(folder, "Free some space or name another place, and save it again."):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "tokenizer_config.json", self.config)
            with atomic_file(folder / "tokenizer.json") as file:
                file.write(self.backend.to_str(pretty=True).encode())

    def lowercase(self) -> None:
        """Read every text as if it were written in lower case."""
        own, lower = self.backend.normalizer, tokenizers.normalizers.Lowercase()
        if '"Lowercase"' not in json.dumps(json.loads(self.backend.to_str())["normalizer"]):
            both = [lower, own] if own is not None else [lower]
            self.backend.normalizer = tokenizers.normalizers.Sequence(both)

    def to_json(self) -> str:
        """All that decides which ids a text gets, for other processes to work with."""
        return self.backend.to_str()

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        """One more than the largest id: a vocabulary of someone else's may have gaps."""
        return 1 + max(self.backend.get_vocab().values(), default=-1)

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """The ids of a text; with `specials`, also the tokens its family puts around it."""
        return self.backend.encode(text, add_special_tokens=specials).ids

    def decode(self, ids: Sequence[int], skip_specials: bool = False) -> str:
        """The text that ids stand for."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_specials)

    def pieces(self, text: str) -> list[Piece]:
        """The tokens of a text, for looking at."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        pairs = zip(encoding.tokens, encoding.ids, strict=True)
        return [Piece(token, id, id != self.unknown_id) for token, id in pairs]

    def coverage(self, texts: Iterable[str]) -> Coverage:
        """Words (runs of anything but white space), tokens and unknown tokens of some texts."""
        words = tokens = unknown = 0
        for text in texts:
            pieces = self.pieces(text)
            words += len(text.split())
            tokens += len(pieces)
            unknown += sum(not piece.known for piece in pieces)
        return Coverage(words, tokens, unknown)

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """The special token of each role this tokenizer has one for: pad, mask, …"""
        tokens = {role: self.config.get(f"{role}_token") for role in ROLES}
        texts = {role: t["content"] if isinstance(t, dict) else t for role, t in tokens.items()}
        return {role: text for role, text in texts.items() if text}

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """The id of each role's special token."""
        ids = {role: self.backend.token_to_id(t) for role, t in self.special_tokens.items()}
        return {role: id for role, id in ids.items() if id is not None}

    @cached_property
    def unknown_id(self) -> int | None:
        """The id that text outside the vocabulary gets; None where every text can be spelt."""
        model = json.loads(self.backend.to_str())["model"]
        if "unk_id" in model:
            return model["unk_id"]
        return self.backend.token_to_id(model.get("unk_token") or "")

    @cached_property
    def kind(self) -> str:
        """The kind of vocabulary, by the names of `firth tokenizer train --kind`."""
        model = json.loads(self.backend.to_str())["model"]
        if model["type"] == "BPE":
            return "bpe-word" if model.get("end_of_word_suffix") else "bpe"
        return {"WordPiece": "wordpiece", "WordLevel": "char"}.get(model["type"], "unigram")

    @cached_property
    def sentinel_ids(self) -> list[int]:
        """The ids of T5's sentinels, the first one first."""
        ids: list[int] = []
        while (id := self.backend.token_to_id(SENTINEL.format(len(ids)))) is not None:
            ids.append(id)
        return ids

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What objectives must know of this tokenizer."""
        tokens = [self.backend.id_to_token(id) or "" for id in range(len(self))]
        special = np.zeros(len(self), dtype=np.bool_)
        special[list(self.backend.get_added_tokens_decoder())] = True
        begins = np.array([WORD_BEGINS[self.kind](token) for token in tokens], dtype=np.bool_)
        ends = np.array([token.endswith("</w>") for token in tokens], dtype=np.bool_)
        sentinels = np.array(self.sentinel_ids, dtype=np.int64)
        return Vocabulary(self.special_ids, sentinels, special, begins, ends)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides which ids a text gets."""
        # The library reads back numbers that it wrote with another last digit.
        read = json.loads(self.backend.to_str(), parse_float=lambda text: round(float(text), 9))
        content = json.dumps(read, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()
