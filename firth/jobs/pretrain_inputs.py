"""Inputs of pre-training: shards, or text and models in memory, written into the run directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firth.data.input_files import named_data
from firth.data.memory import Data
from firth.data.remote_shards import copy_index
from firth.data.shards import read_index
from firth.formats.tokenizers.loading import AnyTokenizer, load_tokenizer
from firth.jobs.parent_models import load_float32
from firth.jobs.preparation import prepare
from firth.model import AnyModel, Model
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.distributed.ranks import current_ranks, wait_for_all
from firth.training.run_directory import SHARDS
from firth.utils.errors import FirthError, UsageError
from firth.utils.object_stores import exists, is_url


def find_data(
    data: Data | None, tokenizer: AnyTokenizer | None, source: AnyModel | None
) -> tuple[Path | None, Tokenizer]:
    """Return the directory of shards, or None if the data is text, and the tokenizer.

    The tokenizer of text is by default that of `source`, the model to continue from.
    """
    if isinstance(data, str | Path):
        if tokenizer is not None and _are_shards(data):
            raise UsageError(f"{data} has shards, and they have a tokenizer: omit `tokenizer`.")
        if tokenizer is None and (source is None or not Path(data).is_file()):
            folder = copy_index(data) if isinstance(data, str) and is_url(data) else Path(data)
            read_index(folder)  # an error if it has no shards
            return folder, Tokenizer.load(folder)
    if data is None:
        raise UsageError("`data` is a directory of shards, or text with a `tokenizer`, not None.")
    if (chosen := source if tokenizer is None else tokenizer) is None:
        raise UsageError(
            "`data` is text: give a `tokenizer` or a `source` as well, or prepare shards first."
        )
    return None, load_tokenizer(chosen)


def prepare_text(
    shards: Path | None, data: Data | None, tokenizer: Tokenizer, out: Path
) -> tuple[Path, list[str]]:
    """Tokenize text into shards in the run directory, unless there are `shards` already.

    Return the shards, and notes of bad rows.
    """
    if shards is not None:
        return shards, []
    assert data is not None
    if not current_ranks().is_main:
        wait_for_all()
        return out / SHARDS, []
    prepared = prepare(named_data(data, "data"), tokenizer=tokenizer, out=out / SHARDS)
    wait_for_all()
    return prepared.path, prepared.notes


def _are_shards(path: str | Path) -> bool:
    if isinstance(path, str) and is_url(path):
        return exists(f"{path}/index.json")
    return (Path(path) / "index.json").is_file()


@contextmanager
def inputs_of_accepted_runs(out: Path) -> Iterator[None]:
    """Remove the models that `as_saved_model` writes if the settings of the run are an error."""
    folders = [folder for name in ("source", "teacher") if not (folder := out / name).exists()]
    try:
        yield
    except FirthError:
        if current_ranks().is_main:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        raise


def as_saved_model(model: AnyModel | None, name: str, out: Path | None) -> str | Path | None:
    """Return the path of a model; one whose weights are only in memory is saved as `out`/`name`.

    `out` is None in a dry run, which writes nothing.
    """
    if not isinstance(model, Model):
        return model
    own = load_float32(model)
    if own.path is not None:
        return own.path
    if out is None:
        raise UsageError(f"A dry run writes nothing: save the model `{name}` first (`model.save`).")
    if current_ranks().is_main:
        own.save(out / name)
    wait_for_all()
    return out / name
