"""The tokenizer of whatever opens as a model; its weights are not touched."""

from __future__ import annotations

from pathlib import Path

from firth.errors import InputError
from firth.text.gguf_tokenizer import gguf_tokenizer
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_files import read_object

MODULES = "modules.json"  # of a sentence encoder
# Where an adapter names the model it belongs to: the file, and the way to the name in it.
BASES = {"firth.json": ("base", "name"), "adapter_config.json": ("base_model_name_or_path",)}


def model_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer in a directory, a GGUF file or a model on the hub; an adapter has its base's.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> model_tokenizer(folder)
    Traceback (most recent call last):
    firth.errors.InputError: ... holds no tokenizer.json: a tokenizer is what ... writes.
    """
    path = _found(source)
    if (base := _base(path)) is not None:
        path = _found(base)
    if path.suffix == ".gguf" and path.is_file():
        return _in_gguf(path)
    return _in_sentence_encoder(path) if (path / MODULES).is_file() else Tokenizer.load(path)


def _found(source: str | Path) -> Path:
    """A place on this machine; what is none may be a name on the hub."""
    if Path(source).exists():
        return Path(source)
    from firth.models.formats.hub import resolve

    return resolve(source)


def _base(path: Path) -> str | Path | None:
    """The model that an adapter belongs to, which may lie in a folder of its own directory."""
    for file, way in BASES.items():
        found = read_object(path / file)
        for name in way:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        if isinstance(found, str) and found:
            return path / found if (path / found).is_dir() else found
    return None


def _in_gguf(path: Path) -> Tokenizer:
    from firth.models.formats.gguf_file import open_gguf

    tokenizer = gguf_tokenizer(open_gguf(path).values, path)
    if tokenizer is None:
        raise InputError(f"{path} holds a model without a tokenizer; name one that has its tokens.")
    return tokenizer


def _in_sentence_encoder(path: Path) -> Tokenizer:
    """Beside the network, in whichever folder that is."""
    from firth.models.formats.sentence import read_sentence

    sentence = read_sentence(path)
    assert sentence is not None
    tokenizer = Tokenizer.load(path / sentence.folder)
    if sentence.lowercase:
        tokenizer.lowercase()
    return tokenizer
