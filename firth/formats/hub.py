"""Resolve a model name to a local path, and download it from the Hugging Face hub if needed.

An existing path has precedence, then the name of an embedded model. Otherwise `name` or `org/name`,
optionally with `@revision`, is a model on the hub. Only the files that Firth uses are downloaded,
into the cache of `huggingface_hub` (configured by HF_HOME, HF_HUB_CACHE, HF_ENDPOINT,
HF_HUB_OFFLINE and HF_TOKEN as usual): small files first, and weights only if the config is
supported.
"""

from __future__ import annotations

import errno
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

from firth.embedded import EMBEDDED_MODELS, local_path
from firth.formats.huggingface.directory import CONFIG, read_config
from firth.formats.pytorch_bin import MODULES, as_safetensors, legacy_file
from firth.formats.safetensors import INDEX, LEGACY, LEGACY_INDEX, WHOLE, legacy_error, read_index
from firth.utils.errors import FirthError, InputError, StorageError, UsageError, short_path

NAME = r"[A-Za-z0-9][\w.-]*"
HUB_ID = re.compile(rf"(?P<id>{NAME}(/{NAME})?)(@(?P<revision>\w[\w./-]*))?", re.ASCII)
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
SMALL = [
    *(CONFIG, "generation_config.json", "run.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "chat_template.jinja",
    *("vocab.txt", "vocab.json", "merges.txt"),
    *("spiece.model", "spm.model", "tokenizer.model"),
    *("sentencepiece.model", "sentencepiece.bpe.model"),
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *(f"{MODULES}/{CONFIG}", f"{MODULES}/{WHOLE}"),
    *(ADAPTER_CONFIG, ADAPTER, "firth.json", "adapter.safetensors"),
    *("reader/*", "joined/*", "joined/reader/*"),
]
EMBEDDED = f"Models inside Firth are {', '.join(EMBEDDED_MODELS)}."
PROGRESS_DELAY = 1.0  # seconds before a progress bar is shown


_HUB_OPTIONS = ContextVar("_HUB_OPTIONS", default=(False, False))  # offline, allow_legacy


@contextmanager
def hub_options(*, offline: bool = False, allow_legacy: bool = False) -> Iterator[None]:
    """Set the options for all models resolved inside the context: `--offline`, `--allow-legacy`."""
    token = _HUB_OPTIONS.set((offline, allow_legacy))
    try:
        yield
    finally:
        _HUB_OPTIONS.reset(token)


def resolve(
    source: str | Path,
    *,
    revision: str | None = None,
    offline: bool = False,
    allow_legacy: bool = False,
) -> Path:
    """Return the local directory or file of a model, downloaded from the hub if needed.

    A `Path` is always local; a string may also be an embedded model or a hub id.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> resolve(folder) == Path(folder)
    True
    >>> resolve("./nosuch")
    Traceback (most recent call last):
    firth.utils.errors.InputError: There is no model at ./nosuch: no such directory.
    """
    always_offline, always_legacy = _HUB_OPTIONS.get()
    offline, allow_legacy = offline or always_offline, allow_legacy or always_legacy
    if not isinstance(source, str | Path):
        kind = type(source).__name__
        raise UsageError(f"A model is a path, a name or a firth.Model, not {kind}.")
    path = local_path(source)
    if path is None:
        id, revision = _hub_id(source, revision)
        path = _fetch(_HubModel(id, revision, offline), allow_legacy)
    elif revision is not None:
        raise UsageError(f"{source} is at {path}; only a model of the hub has a revision.")
    return as_safetensors(path, allowed=allow_legacy) if path.is_dir() else path


def _hub_id(source: str | Path, revision: str | None) -> tuple[str, str | None]:
    """Parse a hub id into name and revision.

    >>> _hub_id("org/name@v2", None), _hub_id("gpt2", "main")
    (('org/name', 'v2'), ('gpt2', 'main'))
    """
    found = HUB_ID.fullmatch(source) if isinstance(source, str) else None
    if found is None:
        raise InputError(f"There is no model at {short_path(source)}: no such directory.")
    if revision is not None and found["revision"] is not None:
        raise UsageError(f"{source} and revision={revision!r} both give a revision; use only one.")
    return found["id"], found["revision"] or revision


@dataclass(frozen=True)
class _HubModel:
    """A model on the hub; `offline`: use only the cache."""

    id: str
    revision: str | None
    offline: bool

    def __str__(self) -> str:
        return self.id if self.revision is None else f"{self.id}@{self.revision}"


def _fetch(model: _HubModel, allow_legacy: bool) -> Path:
    """Return the snapshot of a model in the hub's cache, downloaded if needed."""
    from huggingface_hub import constants

    model = replace(model, offline=model.offline or constants.HF_HUB_OFFLINE)
    folder = _download(model, model.revision, SMALL)
    if (folder / CONFIG).is_file():
        read_config(folder)
    elif not (folder / ADAPTER_CONFIG).is_file():
        raise _missing_error(model, f"has no {CONFIG} (for a GGUF file, give the path of the file)")
    if not _is_complete(folder) and not model.offline:
        commit = folder.name
        names = weight_files(str(model), _list_files(model, commit), allow_legacy=allow_legacy)
        _download(model, commit, names)
        for index, ending in ((INDEX, "safetensors"), (LEGACY_INDEX, "bin")):
            if index in names:
                _download(model, commit, set(read_index(folder / index, ending).values()))
    if not _is_complete(folder) and not (allow_legacy and legacy_file(folder)):
        raise _missing_error(model, f"lacks files that its {INDEX} names")
    return folder


def _missing_error(model: _HubModel, what: str) -> FirthError:
    """Return the error for missing files: on the hub, or if offline in the cache."""
    return _not_cached_error(model) if model.offline else InputError(f"{model} on the hub {what}.")


def _is_complete(folder: Path) -> bool:
    """Return whether all weights are there as safetensors."""
    if (folder / INDEX).is_file() and not (folder / WHOLE).is_file():
        return all((folder / shard).is_file() for shard in read_index(folder / INDEX).values())
    return (folder / WHOLE).is_file() or (folder / ADAPTER).is_file()


def weight_files(where: str, files: Iterable[str], *, allow_legacy: bool = False) -> list[str]:
    """Return the files of a repository that hold the weights, or their index.

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
                raise legacy_error(f"{where} on the hub", name)
            modules = {file for file in present if fnmatch(file, f"{MODULES}/{LEGACY}")}
            rewritten = {file.replace(WHOLE, LEGACY) for file in present if file.endswith(WHOLE)}
            return [name, *sorted(modules - rewritten)]
    raise InputError(f"{where} on the hub holds no weights: there is neither {WHOLE} nor {INDEX}.")


# ---- calls of huggingface_hub -----------------------------------------------------------------


def _download(model: _HubModel, revision: str | None, files: Iterable[str]) -> Path:
    """Download files into the cache, or find them there."""
    from huggingface_hub import snapshot_download

    with _readable_errors(model):
        return Path(
            snapshot_download(
                model.id,
                revision=revision,
                allow_patterns=sorted(files),
                local_files_only=model.offline,
                tqdm_class=_bar(),
            )
        )


def _list_files(model: _HubModel, commit: str) -> list[str]:
    from huggingface_hub import HfApi

    with _readable_errors(model):
        return HfApi().list_repo_files(model.id, revision=commit)


def _bar() -> type[Any]:
    """Return the library's progress bar, shown only on a terminal and after a delay."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.due = time() + PROGRESS_DELAY
            usual = {"disable": None, "leave": False, "delay": PROGRESS_DELAY}
            super().__init__(*arguments, **usual | options)  # type: ignore[no-untyped-call]

        def display(self, *arguments: Any, **options: Any) -> None:
            if time() >= self.due:
                super().display(*arguments, **options)

    return Bar


@contextmanager
def _readable_errors(model: _HubModel) -> Iterator[None]:
    """Silence the library's warnings unless on a terminal; convert its errors to ours."""
    from huggingface_hub.utils import logging

    usual = logging.get_verbosity()
    if not sys.stderr.isatty():
        logging.set_verbosity(ERROR)
    try:
        yield
    except Exception as error:  # also of requests or httpx, depending on the library's version
        raise _readable_error(model, error) from error
    finally:
        logging.set_verbosity(usual)


MESSAGES = {  # by the name of the library's error, the most specific first
    "GatedRepoError": "The model {id} on the hub is gated: ask for access on {endpoint}/{id}, then "
    "set HF_TOKEN or run `hf auth login`.",
    "RepositoryNotFoundError": "There is no directory {id}, and the hub has no model {id} (a "
    "private one needs HF_TOKEN or `hf auth login`). {embedded}",
    "RevisionNotFoundError": "The model {id} on the hub has no revision {revision!r}: name one of "
    "its branches, tags or commits.",
    "HFValidationError": "There is no directory {id}, and no model on the hub can have that name.",
}


def _readable_error(model: _HubModel, error: Exception) -> FirthError:
    from huggingface_hub import constants, errors

    for name, message in MESSAGES.items():
        if isinstance(error, getattr(errors, name)):
            facts = dict(id=model.id, revision=model.revision, endpoint=constants.ENDPOINT)
            return InputError(message.format(**facts, embedded=EMBEDDED))
    not_cached = isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled)
    answer = error.__cause__ if not_cached else error
    if isinstance(answer, errors.HfHubHTTPError):
        return _http_error(model, answer)
    return _not_cached_error(model) if not_cached else _download_error(model, error)


def _http_error(model: _HubModel, error: Any) -> FirthError:
    """Return the error for an HTTP status."""
    status = error.response.status_code
    what = {401: "does not accept the token", 403: "does not give access", 429: "asks to wait"}
    advice = {401: "set HF_TOKEN anew", 403: "check what HF_TOKEN may read"}
    return InputError(
        f"The hub {what.get(status, 'has a problem of its own')} (it answered {status} to a "
        f"request for {model}); {advice.get(status, 'try again later')}."
    )


def _not_cached_error(model: _HubModel) -> FirthError:
    """Return the error for a model that is neither local nor reachable."""
    from huggingface_hub import constants

    why = (
        "offline, nothing is fetched"
        if model.offline
        else f"{constants.ENDPOINT} cannot be reached"
    )
    return InputError(
        f"There is no directory {model}, the hub's cache {constants.HF_HUB_CACHE} does not hold "
        f"the whole model {model}, and {why}. {EMBEDDED}"
    )


def _download_error(model: _HubModel, error: Exception) -> FirthError:
    """Return the error for an interrupted download; the cache has no partial files."""
    from huggingface_hub import constants

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"The disk is full: {model} does not fit into {constants.HF_HUB_CACHE}. "
            "Free some space or set HF_HUB_CACHE to another place."
        )
    if isinstance(error, PermissionError):
        return StorageError(f"{constants.HF_HUB_CACHE} cannot be written; set HF_HUB_CACHE.")
    reason = str(error).partition("\n")[0] or type(error).__name__
    return InputError(f"{model} could not be fetched from the hub ({reason}); try it again.")
