"""MODEL in any of its forms becomes a place on this machine.

What exists here is meant first. Else `name` or `org/name`, perhaps with `@revision`, is a model on
the Hugging Face hub. Of that, only what Firth opens is fetched, into the cache that
`huggingface_hub` keeps (HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN mean what
they mean everywhere): small files first, and weights once the configuration is one we can read.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from logging import ERROR
from pathlib import Path
from time import time
from typing import Any

from firth.errors import FirthError, InputError, Misuse, StorageError
from firth.models.formats.directory import CONFIG, read_config
from firth.models.formats.legacy import MODULES, as_safetensors, legacy_file
from firth.models.formats.weights import (
    INDEX,
    LEGACY,
    LEGACY_INDEX,
    WHOLE,
    legacy_refused,
    read_index,
)

NAME = r"[A-Za-z0-9][\w.-]*"
HUB_ID = re.compile(rf"(?P<id>{NAME}(/{NAME})?)(@(?P<revision>\w[\w./-]*))?", re.ASCII)
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
SMALL = [
    *(CONFIG, "generation_config.json", "run.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt"),
    *("spiece.model", "spm.model", "tokenizer.model"),
    *("sentencepiece.model", "sentencepiece.bpe.model"),
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *(f"{MODULES}/{CONFIG}", f"{MODULES}/{WHOLE}"),
    *(ADAPTER_CONFIG, ADAPTER, "firth.json", "adapter.safetensors"),
    *("reader/*", "joined/*", "joined/reader/*"),
]
PATIENCE = 1.0  # seconds before progress is worth showing


_OPENING = ContextVar("_OPENING", default=(False, False))  # offline, allow_legacy


@contextmanager
def opening(*, offline: bool = False, allow_legacy: bool = False) -> Iterator[None]:
    """Say how every model is opened inside: `--offline`, `--allow-legacy`."""
    token = _OPENING.set((offline, allow_legacy))
    try:
        yield
    finally:
        _OPENING.reset(token)


def resolve(
    source: str | Path,
    *,
    revision: str | None = None,
    offline: bool = False,
    allow_legacy: bool = False,
) -> Path:
    """The directory or file on this machine that MODEL means, fetched from the hub if need be.

    A `Path` is always a place on this machine; text may also be a hub id.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> resolve(folder) == Path(folder)
    True
    >>> resolve("./nosuch")
    Traceback (most recent call last):
    firth.errors.InputError: There is no model at ./nosuch: no such directory.
    """
    always_offline, always_legacy = _OPENING.get()
    offline, allow_legacy = offline or always_offline, allow_legacy or always_legacy
    if os.path.exists(source):
        if revision is not None:
            raise Misuse(f"{source} is on this machine; only a model of the hub has a revision.")
        path = Path(source)
    else:
        id, revision = _hub_id(source, revision)
        path = _fetch(_Asked(id, revision, offline), allow_legacy)
    return as_safetensors(path, allowed=allow_legacy) if path.is_dir() else path


def _hub_id(source: str | Path, revision: str | None) -> tuple[str, str | None]:
    """What a text names on the hub.

    >>> _hub_id("org/name@v2", None), _hub_id("gpt2", "main")
    (('org/name', 'v2'), ('gpt2', 'main'))
    """
    found = HUB_ID.fullmatch(source) if isinstance(source, str) else None
    if found is None:
        raise InputError(f"There is no model at {source}: no such directory.")
    if revision is not None and found["revision"] is not None:
        raise Misuse(f"{source} says which revision, and {revision!r} says it again; give one.")
    return found["id"], found["revision"] or revision


@dataclass(frozen=True)
class _Asked:
    """A model of the hub, and whether the hub may be asked for it."""

    id: str
    revision: str | None
    offline: bool

    def __str__(self) -> str:
        return self.id if self.revision is None else f"{self.id}@{self.revision}"


def _fetch(asked: _Asked, allow_legacy: bool) -> Path:
    """The snapshot of a model in the hub's cache, with all that is needed in it."""
    from huggingface_hub import constants

    asked = replace(asked, offline=asked.offline or constants.HF_HUB_OFFLINE)
    folder = _download(asked, asked.revision, SMALL)
    if (folder / CONFIG).is_file():
        read_config(folder)
    elif not (folder / ADAPTER_CONFIG).is_file():
        raise _lacking(asked, f"has no {CONFIG} (a GGUF file is opened by its own path)")
    if not _is_whole(folder) and not asked.offline:
        commit = folder.name
        names = weight_files(str(asked), _listed(asked, commit), allow_legacy=allow_legacy)
        _download(asked, commit, names)
        for index, ending in ((INDEX, "safetensors"), (LEGACY_INDEX, "bin")):
            if index in names:
                _download(asked, commit, set(read_index(folder / index, ending).values()))
    if not _is_whole(folder) and not (allow_legacy and legacy_file(folder)):
        raise _lacking(asked, f"lacks files that its {INDEX} names")
    return folder


def _lacking(asked: _Asked, what: str) -> FirthError:
    """Something is missing: on the hub, or offline in the cache alone."""
    return _not_here(asked) if asked.offline else InputError(f"{asked} on the hub {what}.")


def _is_whole(folder: Path) -> bool:
    """Whether all weights are there, as safetensors."""
    if (folder / INDEX).is_file() and not (folder / WHOLE).is_file():
        return all((folder / shard).is_file() for shard in read_index(folder / INDEX).values())
    return (folder / WHOLE).is_file() or (folder / ADAPTER).is_file()


def weight_files(where: str, files: Iterable[str], *, allow_legacy: bool = False) -> list[str]:
    """Which of a repository's files hold the weights, or are the index of those that do.

    >>> weight_files("org/name", ["model.safetensors", "pytorch_model.bin", "tf_model.h5"])
    ['model.safetensors']
    """
    present = set(files)
    for name in (WHOLE, INDEX):
        if name in present:
            return [name]
    for name in (LEGACY, LEGACY_INDEX):
        if name in present:
            if not allow_legacy:
                raise legacy_refused(f"{where} on the hub", name)
            modules = {file for file in present if fnmatch(file, f"{MODULES}/{LEGACY}")}
            rewritten = {file.replace(WHOLE, LEGACY) for file in present if file.endswith(WHOLE)}
            return [name, *sorted(modules - rewritten)]
    raise InputError(f"{where} on the hub holds no weights: there is neither {WHOLE} nor {INDEX}.")


# ---- what huggingface_hub does ----------------------------------------------------------------


def _download(asked: _Asked, revision: str | None, files: Iterable[str]) -> Path:
    """Fetch files into the cache, or find them there; without a network, what is there must do."""
    from huggingface_hub import snapshot_download

    with _in_plain_words(asked):
        return Path(
            snapshot_download(
                asked.id,
                revision=revision,
                allow_patterns=sorted(files),
                local_files_only=asked.offline,
                tqdm_class=_bar(),
            )
        )


def _listed(asked: _Asked, commit: str) -> list[str]:
    from huggingface_hub import HfApi

    with _in_plain_words(asked):
        return HfApi().list_repo_files(asked.id, revision=commit)


def _bar() -> type[Any]:
    """The library's own progress bar, but on a terminal alone, and only when it takes a while."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.due = time() + PATIENCE
            usual = {"disable": None, "leave": False, "delay": PATIENCE}
            super().__init__(*arguments, **usual | options)  # type: ignore[no-untyped-call]

        def display(self, *arguments: Any, **options: Any) -> None:
            if time() >= self.due:
                super().display(*arguments, **options)

    return Bar


@contextmanager
def _in_plain_words(asked: _Asked) -> Iterator[None]:
    """Let the library warn on a terminal alone, and say in one sentence what went wrong."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import logging

    usual = logging.get_verbosity()
    if not sys.stderr.isatty():
        logging.set_verbosity(ERROR)
    try:
        yield
    except errors.GatedRepoError as error:
        raise InputError(
            f"The model {asked.id} on the hub is gated: ask for access on "
            f"{constants.ENDPOINT}/{asked.id}, then set HF_TOKEN or run `hf auth login`."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"There is no directory {asked.id}, and the hub has no model {asked.id} "
            "(a private one needs HF_TOKEN or `hf auth login`)."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"The model {asked.id} on the hub has no revision {asked.revision!r}: name one of its "
            "branches, tags or commits."
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _answered(asked, error.__cause__) from error
        raise _not_here(asked) from error
    except errors.HfHubHTTPError as error:
        raise _answered(asked, error) from error
    except errors.HFValidationError as error:
        raise InputError(
            f"There is no directory {asked.id}, and no model on the hub can have that name."
        ) from error
    except Exception as error:  # of requests or httpx, as the version of the library has it
        raise _broken(asked, error) from error
    finally:
        logging.set_verbosity(usual)


def _answered(asked: _Asked, error: Any) -> FirthError:
    """A refusal by the hub itself."""
    status = error.response.status_code
    what = {401: "does not accept the token", 403: "does not give access", 429: "asks to wait"}
    advice = {401: "set HF_TOKEN anew", 403: "check what HF_TOKEN may read"}
    return InputError(
        f"The hub {what.get(status, 'has a problem of its own')} (it answered {status} to a "
        f"request for {asked}); {advice.get(status, 'try again later')}."
    )


def _not_here(asked: _Asked) -> FirthError:
    """Neither on this machine nor to be had."""
    from huggingface_hub import constants

    why = (
        "offline, nothing is fetched"
        if asked.offline
        else f"{constants.ENDPOINT} cannot be reached"
    )
    return InputError(
        f"There is no directory {asked}, the hub's cache {constants.HF_HUB_CACHE} does not hold "
        f"the whole model {asked}, and {why}."
    )


def _broken(asked: _Asked, error: Exception) -> FirthError:
    """A download that ended early; nothing of it has its final name."""
    from huggingface_hub import constants

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"The disk is full: {asked} does not fit into {constants.HF_HUB_CACHE}. "
            "Free some space or set HF_HUB_CACHE to another place."
        )
    if isinstance(error, PermissionError):
        return StorageError(f"{constants.HF_HUB_CACHE} cannot be written; set HF_HUB_CACHE.")
    reason = str(error).partition("\n")[0] or type(error).__name__
    return InputError(f"{asked} could not be fetched from the hub ({reason}); try it again.")
