"""Load the tokenizer of a model in any supported format, without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import tokenizers

from firth.embedded import local_path
from firth.formats.json_files import read_object
from firth.formats.tokenizers.families import FILES, build_tokenizer, complete_settings
from firth.formats.tokenizers.gguf import gguf_tokenizer
from firth.formats.tokenizers.vocab_files import read_settings, read_text
from firth.tokenizers.tokenizer import CHAT_TEMPLATE, TOKENIZER, Tokenizer
from firth.utils.arguments import check_arguments
from firth.utils.errors import InputError

MODULES = "modules.json"  # of a sentence encoder
# Where an adapter names its base model: the file, and the keys in it.
BASES = {"firth.json": ("base", "name"), "adapter_config.json": ("base_model_name_or_path",)}


@runtime_checkable
class ModelWithTokenizer(Protocol):
    """A model in memory that may have a tokenizer."""

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raise an error if there is none."""


AnyTokenizer = str | Path | Tokenizer | ModelWithTokenizer


@check_arguments
def load_tokenizer(source: AnyTokenizer) -> Tokenizer:
    """Load the tokenizer of a model: a directory, GGUF file, embedded model, hub id or adapter.

    A tokenizer, or that of a `Model`, is returned as it is.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> load_tokenizer(folder)
    Traceback (most recent call last):
    firth.utils.errors.InputError: ... holds no tokenizer.json: a tokenizer is what ... writes.
    """
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, ModelWithTokenizer):
        return source.require_tokenizer()
    path = _found(source)
    if (base := _base(path)) is not None:
        path = _found(base)
    if path.suffix == ".gguf" and path.is_file():
        return _in_gguf(path)
    if path.name.endswith((".arpa", ".arpa.gz")):
        return _in_arpa(path)
    if path.is_file():
        return _in_word_vectors(path)
    return _in_sentence_encoder(path) if (path / MODULES).is_file() else _in_directory(path)


def holds_tokenizer(path: Path) -> bool:
    """Return whether a directory holds a tokenizer in any known format."""
    return any((path / name).is_file() for name in (TOKENIZER, *FILES))


def _in_directory(folder: Path) -> Tokenizer:
    """Load `tokenizer.json` or, without one, the vocabulary files of its family."""
    file = folder / TOKENIZER
    if not holds_tokenizer(folder):
        what = "holds no tokenizer.json" if folder.is_dir() else "is not a directory"
        raise InputError(f"{folder} {what}: a tokenizer is what `firth tokenizer train` writes.")
    tokenizer = _read(folder, file) if file.is_file() else build_tokenizer(folder)
    if (folder / CHAT_TEMPLATE).is_file():
        tokenizer.config["chat_template"] = read_text(folder / CHAT_TEMPLATE)
    return tokenizer


def _read(folder: Path, file: Path) -> Tokenizer:
    """Read `tokenizer.json`."""
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise InputError(f"{file} is not a tokenizer: {error}.") from error
    return Tokenizer(backend, complete_settings(folder, read_settings(folder), backend))


def _found(source: str | Path) -> Path:
    """Return a local path; download the model if the name is a hub id."""
    if isinstance(source, str | Path) and (path := local_path(source)) is not None:
        return path
    from firth.formats.hub import resolve

    return resolve(source)


def _base(path: Path) -> str | Path | None:
    """Return the base model of an adapter, possibly a folder in its own directory."""
    for file, keys in BASES.items():
        found = read_object(path / file)
        for name in keys:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        if isinstance(found, str) and found:
            return path / found if (path / found).is_dir() else found
    return None


def _in_gguf(path: Path) -> Tokenizer:
    from firth.formats.gguf_file import open_gguf

    tokenizer = gguf_tokenizer(open_gguf(path).values, path)
    if tokenizer is None:
        raise InputError(f"{path} holds a model without a tokenizer; use a file that has one.")
    return tokenizer


def _in_arpa(path: Path) -> Tokenizer:
    from firth.formats.arpa import ArpaReader  # imports torch

    return ArpaReader(path).read()[1]


def _in_word_vectors(path: Path) -> Tokenizer:
    from firth.formats.word_vectors.static_model import read_static_vectors

    return read_static_vectors(path)[1]


def _in_sentence_encoder(path: Path) -> Tokenizer:
    """Load the tokenizer from the folder of the network."""
    from firth.formats.sentence_transformers import read_sentence

    sentence = read_sentence(path)
    assert sentence is not None
    tokenizer = _in_directory(path / sentence.folder)
    if sentence.lowercase:
        tokenizer.lowercase()
    return tokenizer
