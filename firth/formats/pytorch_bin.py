"""Convert a legacy `pytorch_model.bin` to safetensors, once, and only if allowed.

Such a file is a pickle, which can run code. Its opcodes are scanned first, and a file that calls
anything except constructors of tensors is refused; then `torch.load(weights_only=True)` loads it,
which checks again. The result is checked, too: a small file can describe tensors of any size.

The safetensors file is written next to the pickle. If that directory is not writable, a directory
of symbolic links in Firth's cache (`$XDG_CACHE_HOME/firth/legacy`) is used instead.
"""

from __future__ import annotations

import hashlib
import os
import pickletools
import re
import reprlib
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from firth.formats.safetensors import (
    INDEX,
    LEGACY,
    LEGACY_INDEX,
    NAMES,
    WHOLE,
    legacy_error,
    read_index,
    write_weights,
)
from firth.utils.errors import InputError, storage_errors
from firth.utils.files import write_json

MODULES = "[0-9]_*"  # directories of the further layers of a sentence encoder
MAX_COPIES = 8  # names of the same tensor (T5 has four for its embeddings)
ZIPPED = b"PK\x03\x04"
PICKLES = 5  # pickles before the tensors in a file written before PyTorch 1.6
CALLS = re.compile(
    r"collections OrderedDict|torch Size|torch(\.storage)? \w+Storage"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|parameter)|torch\.nn\.parameter Parameter"
)


def legacy_file(folder: Path) -> Path | None:
    """Return the pickle, or index of pickles, of a directory without safetensors, else None."""
    if _has_safetensors(folder):
        return None
    found = (folder / name for name in (LEGACY, LEGACY_INDEX))
    return next((file for file in found if file.is_file()), None)


def as_safetensors(folder: Path, *, allowed: bool) -> Path:
    """Convert pickled weights and return the directory with safetensors, usually the same.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> torch.save({"bias": torch.ones(2)}, folder / "pytorch_model.bin")
    >>> as_safetensors(folder, allowed=True) == folder
    True
    >>> sorted(path.name for path in folder.iterdir())
    ['model.safetensors', 'pytorch_model.bin']
    """
    parts = (folder, *sorted(folder.glob(MODULES)))
    pickles = {part.relative_to(folder): file for part in parts if (file := legacy_file(part))}
    if not pickles:
        return folder
    home = folder if os.access(folder, os.W_OK) else _stand_in(folder, pickles.values())
    missing = {part: file for part, file in pickles.items() if not _has_safetensors(home / part)}
    if missing and not allowed:
        if file := missing.get(Path()):
            raise legacy_error(folder, file.name)
        return folder
    with storage_errors(home, "Free some space or copy the model to another disk."):
        if home != folder:
            _link(folder, home, pickles)
        for part, file in missing.items():
            _rewrite(file, home / part)
    return home


def _has_safetensors(folder: Path) -> bool:
    return (folder / WHOLE).is_file() or (folder / INDEX).is_file()


def _stand_in(folder: Path, pickles: Iterable[Path]) -> Path:
    """Return the cache directory for pickles of these sizes and modification times."""
    state = [
        (str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in pickles
    ]
    key = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "firth" / "legacy" / f"{folder.resolve().name}-{key}"


def _link(folder: Path, home: Path, pickles: Mapping[Path, Path]) -> None:
    """Link all files of a directory except pickles into another."""
    for part in (Path(), *pickles):
        (home / part).mkdir(parents=True, exist_ok=True)
        for entry in (folder / part).iterdir():
            link = home / part / entry.name
            pickled = entry.name.startswith("pytorch_model") or part / entry.name in pickles
            if not pickled and not os.path.lexists(link):
                link.symlink_to(entry.resolve())


def _rewrite(file: Path, home: Path) -> None:
    """Write the tensors of a pickle, or of an index of pickles, as safetensors."""
    if file.name == LEGACY:
        write_weights(home / WHOLE, _read(file))
        return
    homes, written = read_index(file, "bin"), dict[str, Path]()
    try:
        for shard in sorted(set(homes.values())):
            tensors = _read(file.with_name(shard))
            if lacking := [n for n, s in homes.items() if s == shard and n not in tensors]:
                raise InputError(f"{file} says that {shard} holds {lacking[0]!r}, but it does not.")
            name = shard.removeprefix("pytorch_").removesuffix("bin") + "safetensors"
            written[shard] = home / name
            write_weights(home / name, tensors)
    except BaseException:
        for path in written.values():
            path.unlink(missing_ok=True)
        raise
    write_json(
        home / INDEX,
        {"metadata": {}, "weight_map": {name: written[s].name for name, s in homes.items()}},
    )


def _read(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a pickle; raise `InputError` if it holds anything else."""
    if not file.is_file():
        raise InputError(f"{file} is not there, or is not a file.")
    try:
        state = _unpickled(file)
    except InputError:
        raise
    except Exception as error:  # a pickle can go wrong in any way
        raise InputError(
            f"{file} is damaged, or holds more than numbers and would run code; nothing of it was "
            "run, and it is not opened: look for the model as safetensors."
        ) from error
    if not isinstance(state, dict):
        raise InputError(f"{file} does not hold tensors with names; it is not opened.")
    for name, value in state.items():
        if not _is_name(name) or not _is_plain(value):
            what = f"{file} holds {reprlib.repr(name)}, which"
            raise InputError(f"{what} is not the name of a plain tensor of a known type.")
    if sum(tensor.nbytes for tensor in state.values()) > MAX_COPIES * file.stat().st_size:
        raise InputError(f"{file} describes far more numbers than it holds; it is not opened.")
    return state


def _unpickled(file: Path) -> Any:
    with open(file, "rb") as stream:
        zipped = stream.read(len(ZIPPED)) == ZIPPED
        stream.seek(0)
        for _ in range(0 if zipped else PICKLES):
            _check_calls(file, stream)
    if zipped:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("compressed, which PyTorch never does")
                if entry.filename.endswith(".pkl"):
                    with archive.open(entry) as pickled:
                        _check_calls(file, pickled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of pickles that it then refuses
        return torch.load(str(file), map_location="cpu", weights_only=True, mmap=zipped)


def _check_calls(file: Path, stream: IO[bytes]) -> None:
    """Scan the opcodes of one pickle without executing them."""
    for instruction, argument, _ in pickletools.genops(stream):
        if instruction.name == "GLOBAL" and not CALLS.fullmatch(str(argument)):
            called = reprlib.repr(str(argument).replace(" ", "."))
            raise InputError(
                f"{file} calls {called} when it is opened, which no weights need; nothing of it "
                "was run, and it is not opened: look for the model as safetensors."
            )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and value != "__metadata__"


def _is_plain(value: Any) -> bool:
    return (
        type(value) in (Tensor, nn.Parameter)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and value.dtype in NAMES
    )
