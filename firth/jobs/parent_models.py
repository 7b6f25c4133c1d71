"""Models to start training from: loaded from disk, or copied from memory."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch

from firth.model import AnyModel, Model, load
from firth.quantization.int8 import count_int8_weights
from firth.utils.errors import FirthError, UsageError

IN_MEMORY = "a model in memory"  # in `run.json`


def load_float32(model: AnyModel) -> Model:
    """Load float32 weights to train; those of a `Model` are copied.

    The copy of a model whose weights are not those of its directory has no path.
    """
    if not isinstance(model, Model):
        return load(model, dtype="float32")
    if count_int8_weights(model.network):
        raise UsageError("A model with int8 weights cannot be trained: load it without weights.")
    stored = None if model.path is None else _stored(model.path)
    if stored is not None and _same_weights(model, stored):
        return replace(stored, source=model.source)
    return replace(model, network=deepcopy(model.network).float(), path=None, source=None)


def _stored(path: Path) -> Model | None:
    try:
        return load(path, dtype="float32")
    except FirthError:  # the directory of a model that has moved
        return None


def _same_weights(model: Model, stored: Model) -> bool:
    own, others = model.network.state_dict(), stored.network.state_dict()
    return own.keys() == others.keys() and all(
        own[name].dtype == other.dtype and torch.equal(own[name].to(other.device), other)
        for name, other in others.items()
    )
