"""Inputs of pre-training that are no shards or no saved model: written into the run directory."""

from __future__ import annotations

from pathlib import Path

from firth.data.memory import Data
from firth.data.remote_shards import copy_index
from firth.formats.tokenizers.loading import AnyTokenizer
from firth.jobs.parent_models import load_float32
from firth.jobs.preparation import prepare
from firth.model import AnyModel, Model
from firth.training.distributed.ranks import current_ranks, wait_for_all
from firth.training.run_directory import SHARDS
from firth.utils.errors import UsageError
from firth.utils.object_stores import exists, is_url


def as_shards(
    data: Data | None, tokenizer: AnyTokenizer | None, out: Path
) -> tuple[str | Path, list[str]]:
    """Return a directory of shards; other text is tokenized into the run directory first.

    Also return notes of bad rows in that text.
    """
    if isinstance(data, str | Path) and (tokenizer is None or _are_shards(data)):
        if tokenizer is not None:
            raise UsageError(f"{data} has shards, and they have a tokenizer: omit `tokenizer`.")
        return copy_index(data) if isinstance(data, str) and is_url(data) else data, []
    if data is None:
        raise UsageError("`data` is a directory of shards, or text with a `tokenizer`, not None.")
    if tokenizer is None:
        raise UsageError("`data` is text: give a `tokenizer` as well, or prepare shards first.")
    if not current_ranks().is_main:
        wait_for_all()
        return out / SHARDS, []
    prepared = prepare(data, tokenizer=tokenizer, out=out / SHARDS)
    wait_for_all()
    return prepared.path, prepared.notes


def _are_shards(path: str | Path) -> bool:
    if isinstance(path, str) and is_url(path):
        return exists(f"{path}/index.json")
    return (Path(path) / "index.json").is_file()


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
