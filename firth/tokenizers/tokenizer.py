"""A tokenizer: text to token ids and back, and its special tokens by role.

It wraps the `tokenizers` library. Saved, it is a directory with `tokenizer.json` and
`tokenizer_config.json`, which `transformers.AutoTokenizer` loads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from firth.tokenizers.open_vocabulary import FIRST_OPEN_ID, decode_words, open_ids
from firth.utils.errors import InputError, UsageError, storage_errors
from firth.utils.files import atomic_file, write_json
from firth.utils.notebook import HtmlRepr
from firth.utils.rng import Bools, Longs

SENTINEL = "<extra_id_{}>"
TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"  # takes precedence over the one in tokenizer_config.json
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in the order of new ids

# Which tokens begin a word; punctuation is a separate word. bpe-word marks ends (`</w>`) instead.
WORD_BEGINS: dict[str, Callable[[str], bool]] = {
    "wordpiece": lambda token: not token.startswith("##"),
    "bpe": lambda token: token[:1] in "ĠĊ" or not token[:1].isalnum(),
    "bpe-word": lambda token: False,
    "unigram": lambda token: token[:1] == "▁" or not token[:1].isalnum(),
    "char": lambda token: not token.isalnum(),
    "word": lambda token: True,
}


class TokenPiece(NamedTuple):
    """One token of a text."""

    token: str  # as in the vocabulary
    id: int
    known: bool  # False: the unknown token


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
        """The fraction of unknown tokens."""
        return self.unknown / max(1, self.tokens)


@dataclass(frozen=True)
class Vocabulary:
    """The properties of a tokenizer that objectives use: special ids and word boundaries.

    V  vocabulary size     K  number of sentinels
    """

    ids: dict[str, int]  # special token id by role
    sentinels: Longs  # (K,) T5's sentinels, starting with the first
    special: Bools  # (V,) never masked, never predicted
    begins: Bools  # (V,) begins a word
    ends: Bools  # (V,) ends a word

    def id(self, *roles: str) -> int:
        """Return the id of the first of these roles that the tokenizer has."""
        for role in roles:
            if role in self.ids:
                return self.ids[role]
        raise UsageError(
            f"The objective needs a {' or '.join(roles)} token, which this tokenizer lacks; "
            "train one with `firth tokenizer train --specials` (bert and roberta have a mask)."
        )


@contextmanager
def encoding_errors() -> Iterator[None]:
    """Raise `InputError` in place of the library's errors: no text, or a word without a token."""
    try:
        yield
    except TypeError as error:
        raise InputError(
            "A tokenizer encodes text (`str`) without surrogates such as \\ud800, which are no "
            f"characters ({error}); replace them, for example with \\ufffd."
        ) from error
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # of the library's Rust code
            raise InputError(
                f"The tokenizer's file is damaged ({error}); copy it again."
            ) from error
        if type(error) is not Exception:  # the library's own errors have no class
            raise
        raise InputError(
            "A text has a word or character that is not in the vocabulary, and the tokenizer has "
            f"no token for such words ({error}); add an unknown token to its vocabulary, or use "
            "another tokenizer."
        ) from error


def encode_batch(
    backend: tokenizers.Tokenizer,
    texts: Sequence[str],
    *,
    specials: bool = False,
    offsets: bool = False,
) -> list[tokenizers.Encoding]:
    """Encode texts; with `offsets`, also find the characters of each token."""
    encode = backend.encode_batch if offsets else backend.encode_batch_fast
    with encoding_errors():
        return encode(texts, add_special_tokens=specials)


class Tokenizer(HtmlRepr):
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
    def load(cls, path: str | Path) -> Tokenizer:
        """Load a directory that `save` wrote; `load_tokenizer` also loads other formats."""
        folder = Path(path)
        try:
            backend = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        except Exception as error:  # the library raises nothing more precise
            raise InputError(f"{folder} holds no valid tokenizer: {error}.") from error
        return cls(backend, config)

    def save(self, path: str | Path) -> None:
        """Write a directory that `load` and `transformers.AutoTokenizer` read."""
        folder = Path(path)
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / CONFIG, self.config)  # with the chat template
            (folder / CHAT_TEMPLATE).unlink(missing_ok=True)
            with atomic_file(folder / TOKENIZER) as file:
                file.write(self.backend.to_str(pretty=True).encode())

    def lowercase(self) -> None:
        """Convert every text to lower case before encoding."""
        own, lower = self.backend.normalizer, tokenizers.normalizers.Lowercase()
        if '"Lowercase"' not in json.dumps(json.loads(self.backend.to_str())["normalizer"]):
            both = [lower, own] if own is not None else [lower]
            self.backend.normalizer = tokenizers.normalizers.Sequence(both)

    def to_json(self) -> str:
        """Serialize the backend, for example for other processes."""
        return self.backend.to_str()

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        specials = " ".join(dict.fromkeys(self.special_tokens.values()))
        return f"Tokenizer({self.kind}, {len(self):,} tokens, special tokens: {specials or 'none'})"

    @cached_property
    def _size(self) -> int:
        """One more than the largest id; ids of other tokenizers may have gaps."""
        return 1 + max(self.backend.get_vocab().values(), default=-1)

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """Encode a text; with `specials`, add the family's special tokens around it."""
        return self.encoding(text, specials).ids

    def open_encode(self, text: str, specials: bool = False) -> list[int]:
        """Encode a text, with an id of its own for each unknown word (`open_vocabulary.py`)."""
        return self.open_ids(self.encoding(text, specials), text)

    def open_ids(self, encoding: tokenizers.Encoding, text: str) -> list[int]:
        """Return the ids of an encoding with offsets, each unknown word having its own."""
        return open_ids(self.backend, encoding, text, self.unknown_id)

    def encoding(self, text: str, specials: bool = False) -> tokenizers.Encoding:
        """Encode a text to token ids, token strings and the characters of each token."""
        with encoding_errors():
            return self.backend.encode(text, add_special_tokens=specials)

    def decode(self, ids: Sequence[int], skip_specials: bool = False) -> str:
        """Decode token ids to text."""
        if any(id >= FIRST_OPEN_ID for id in ids):
            special = self.backend.get_added_tokens_decoder() if skip_specials else {}
            return decode_words(self.backend, ids, set(special))
        return self.backend.decode(list(ids), skip_special_tokens=skip_specials)

    def pieces(self, text: str) -> list[TokenPiece]:
        """Tokenize a text into token strings and ids."""
        encoding = self.encoding(text)
        pairs = zip(encoding.tokens, encoding.ids, strict=True)
        return [TokenPiece(token, id, id != self.unknown_id) for token, id in pairs]

    def coverage(self, texts: Iterable[str]) -> Coverage:
        """Count the words (split at white space), tokens and unknown tokens of texts."""
        words = tokens = unknown = 0
        for text in texts:
            pieces = self.pieces(text)
            words += len(text.split())
            tokens += len(pieces)
            unknown += sum(not piece.known for piece in pieces)
        return Coverage(words, tokens, unknown)

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """The special tokens by role: pad, mask, …"""
        tokens = {role: self.config.get(f"{role}_token") for role in ROLES}
        texts = {role: t["content"] if isinstance(t, dict) else t for role, t in tokens.items()}
        return {role: text for role, text in texts.items() if text}

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """The special token ids by role."""
        ids = {role: self.backend.token_to_id(t) for role, t in self.special_tokens.items()}
        return {role: id for role, id in ids.items() if id is not None}

    @cached_property
    def unknown_id(self) -> int | None:
        """The id of the unknown token; None if the vocabulary covers every text."""
        model = json.loads(self.backend.to_str())["model"]
        if "unk_id" in model:
            return model["unk_id"]
        return self.backend.token_to_id(model.get("unk_token") or "")

    @cached_property
    def kind(self) -> str:
        """The kind of tokenizer, as in `firth tokenizer train --kind`, or `word`: whole words."""
        model = json.loads(self.backend.to_str())["model"]
        if model["type"] == "BPE":
            return "bpe-word" if model.get("end_of_word_suffix") else "bpe"
        if model["type"] == "WordLevel":
            special = {str(token) for token in self.backend.get_added_tokens_decoder().values()}
            return "word" if any(len(t) > 1 for t in model["vocab"].keys() - special) else "char"
        return "wordpiece" if model["type"] == "WordPiece" else "unigram"

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether each character of a token encodes one byte, as in GPT-2."""
        steps = (self.backend.decoder, self.backend.pre_tokenizer)
        return any(step is not None and b'"ByteLevel"' in step.__getstate__() for step in steps)

    @cached_property
    def sentinel_ids(self) -> list[int]:
        """The ids of T5's sentinels, starting with the first."""
        ids: list[int] = []
        while (id := self.backend.token_to_id(SENTINEL.format(len(ids)))) is not None:
            ids.append(id)
        return ids

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The special ids and word boundaries that objectives use."""
        tokens = [self.backend.id_to_token(id) or "" for id in range(len(self))]
        special = np.zeros(len(self), dtype=np.bool_)
        special[list(self.backend.get_added_tokens_decoder())] = True
        begins = np.array([WORD_BEGINS[self.kind](token) for token in tokens], dtype=np.bool_)
        ends = np.array([token.endswith("</w>") for token in tokens], dtype=np.bool_)
        sentinels = np.array(self.sentinel_ids, dtype=np.int64)
        return Vocabulary(self.special_ids, sentinels, special, begins, ends)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that the tokens of a text depend on, without special tokens."""
        # The library changes the last digit of numbers when it reads its own files.
        read = json.loads(self.backend.to_str(), parse_float=lambda text: round(float(text), 9))
        del read["post_processor"]  # adds special tokens
        content = json.dumps(read, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()
