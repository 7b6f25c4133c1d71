"""Read and validate vocabulary files, merges and tokenizer settings.

tokenizer_config.json     settings, special tokens by role, added tokens
special_tokens_map.json   special tokens by role, in older directories
added_tokens.json         added tokens and their ids, in older directories
vocab.txt                 one token per line; the line number is the id
vocab.json, merges.txt    token ids; merges in order of priority
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from firth.formats.json_files import read_object
from firth.tokenizers.tokenizer import ROLES
from firth.utils.errors import InputError

MAX_BYTES = 64 << 20
MAX_TOKENS = 10_000_000
LISTS = ("extra_special_tokens", "additional_special_tokens")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
# White space at the end of a line, as defined by the `tokenizers` library.
WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
WHITE += "\u200a\u2028\u2029\u202f\u205f\u3000"


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings of a tokenizer."""

    values: dict[str, Any]  # as in tokenizer_config.json, including special tokens by role
    added: Mapping[int, AddedToken]  # added tokens by id

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean setting."""
        value = self.values.get(name)
        return default if value is None else bool(value)

    def roles(self) -> dict[str, AddedToken | None]:
        """Return the special tokens by role; None if a role is explicitly null."""
        names = {role: f"{role}_token" for role in ROLES}
        found = {role: self.values[name] for role, name in names.items() if name in self.values}
        return {role: token and as_token(token, special=True) for role, token in found.items()}

    def extra(self) -> list[AddedToken]:
        """Return special tokens without a role."""
        listed = next((self.values[name] for name in LISTS if self.values.get(name)), None)
        return [as_token(token, special=True) for token in _texts(listed or [])]


def as_token(token: Any, *, special: bool) -> AddedToken:
    """Convert a JSON token, a string or an object with flags, to an `AddedToken`.

    >>> as_token({"content": "<mask>", "lstrip": True}, special=True).lstrip
    True
    """
    if isinstance(token, str):
        return AddedToken(token, special=special)
    flags = {name: bool(token[name]) for name in FLAGS if name in token}
    return AddedToken(token["content"], special=special, **flags)


def read_settings(folder: Path) -> TokenizerSettings:
    """Read the settings in the JSON files of a tokenizer; missing files are skipped."""
    file, older = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    values, named = read_object(file), read_object(older)
    # Where added tokens are listed in the newer way, the older file is a leftover.
    is_new = "added_tokens_decoder" in values
    merged = {**named, **values} if is_new else {**values, **named}
    for name in (*(f"{role}_token" for role in ROLES), *LISTS):
        value = merged.get(name)
        tokens = [] if value is None else _texts(value) if name in LISTS else [value]
        if not isinstance(tokens, list) or not all(map(_is_token, tokens)):
            source = older if name in named and not (is_new and name in values) else file
            raise InputError(f"{source}: {name} is not a token with a text.")
    settings = TokenizerSettings(merged, {})
    added = _listed(file, values) if is_new else _older(folder / "added_tokens.json", settings)
    return TokenizerSettings(merged, dict(sorted(added)))


def read_text(file: Path) -> str:
    """Read a UTF-8 text file of bounded size."""
    if file.stat().st_size > MAX_BYTES:
        raise InputError(f"{file} is too large to belong to a tokenizer.")
    data = file.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}, line {line} is not UTF-8 text.") from error


def read_lines(file: Path) -> dict[str, int]:
    """Read `vocab.txt`; of duplicate tokens, the last line counts."""
    lines = read_text(file).removesuffix("\n").split("\n")
    if lines == [""]:
        raise InputError(f"{file} is empty: it should have one token a line.")
    return {line.rstrip(WHITE): id for id, line in enumerate(lines)}


def read_ids(file: Path) -> dict[str, int]:
    """Read `vocab.json`."""
    if not file.is_file():
        raise InputError(f"There is no {file}, which merges.txt needs.")
    ids = read_object(file, MAX_BYTES)
    if not ids:
        raise InputError(f"{file} has no tokens.")
    return {token: _id(file, token, id) for token, id in ids.items()}


def read_merges(file: Path, known: Mapping[str, int]) -> list[tuple[str, str]]:
    """Read `merges.txt`, and check that all pairs and results are known tokens."""
    if not file.is_file():
        raise InputError(f"There is no {file}, which vocab.json needs.")
    merges = []
    for number, line in enumerate(read_text(file).removesuffix("\n").split("\n"), start=1):
        line = line.removesuffix("\r")
        if line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise InputError(f"{file}, line {number}: expected two tokens, not {line!r}.")
        for token in (*pair, "".join(pair)):
            if token not in known:
                raise InputError(f"{file}, line {number} names {token!r}, which has no id.")
        merges.append((pair[0], pair[1]))
    return merges


def _texts(value: Any) -> Any:
    """Convert an object of named tokens to a list."""
    return list(value.values()) if isinstance(value, dict) else value


def _is_token(token: Any) -> bool:
    content = token.get("content") if isinstance(token, dict) else token
    return isinstance(content, str) and content != ""


def _listed(file: Path, values: dict[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    """Parse added tokens in the current format: {"5": {"content": "[NEW]", "special": true, …}}."""
    listed = values["added_tokens_decoder"]
    if not isinstance(listed, dict) or not all(map(_is_token, listed.values())):
        raise InputError(f"{file}: added_tokens_decoder is not an object of tokens.")
    for id, token in listed.items():
        is_special = isinstance(token, dict) and bool(token.get("special"))
        number = int(id) if id.isdecimal() and len(id) < 10 else None
        yield _id(file, id, number), as_token(token, special=is_special)


def _older(file: Path, settings: TokenizerSettings) -> Iterator[tuple[int, AddedToken]]:
    """Parse added tokens in the older format: {"[NEW]": 5}."""
    tokens = [*settings.roles().values(), *settings.extra()]
    named = {token.content for token in tokens if token is not None}
    for text, id in read_object(file).items():
        is_special = text in named
        token = AddedToken(text, special=is_special, normalized=not is_special)
        yield _id(file, text, id), token


def _id(file: Path, token: str, id: Any) -> int:
    if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < MAX_TOKENS:
        raise InputError(f"{file}: the id of {token[:80]!r} is invalid.")
    return id
