"""Models to start training from: loaded from disk, or copied from memory."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch

from firth.adapt.apply import get_adapters, merge, remove
from firth.formats.hub import resolve
from firth.formats.huggingface.directory import CONFIG, read_config
from firth.formats.tokenizers.loading import AnyTokenizer, load_tokenizer
from firth.model import AnyModel, Model, load
from firth.models.initialization import initialise
from firth.models.networks import build_network
from firth.models.presets import preset
from firth.models.transformer import count_parameters
from firth.objectives.registry import OBJECTIVES, pretraining_tokenizer
from firth.quantization.int8 import count_int8_weights
from firth.training.pretrain_config import preset_config
from firth.training.run_directory import PRESET
from firth.utils.devices import available_memory
from firth.utils.errors import FirthError, MismatchError, UsageError


def load_float32(model: AnyModel) -> Model:
    """Load float32 weights to train; those of a `Model` are copied.

    The copy of a model whose weights are not those of its directory has no path.
    """
    if not isinstance(model, Model):
        _check_memory(resolve(model), str(model))
        return load(model, dtype="float32")
    if count_int8_weights(model.network):
        raise UsageError("A model with int8 weights cannot be trained: load it without weights.")
    stored = None if model.path is None else _stored(model.path)
    if stored is not None and _same_weights(model, stored):
        return replace(stored, source=model.source)
    source = model.source if model.path is None else None
    return replace(model, network=deepcopy(model.network).float(), path=None, source=source)


def merge_adapters(model: Model) -> None:
    """Merge the adapter of a model into its weights, so that it can be trained further."""
    network = model.network
    for name, adapted in list(get_adapters(network).items()):
        if not adapted.modules:  # a head alone
            remove(network, name)
            network.config = adapted.config
            network.heads.update(adapted.heads)
    if not get_adapters(network):
        return
    try:
        merge(network, keep=False)
    except UsageError as error:
        raise MismatchError(
            f"{model.source} is an adapter that cannot be merged for more training. {error}"
        ) from error


def _check_memory(path: Path, name: str) -> None:
    """Raise an error if the float32 weights of a model directory do not fit into memory."""
    free = available_memory(torch.device("cpu"))
    if free is None or not (path / CONFIG).is_file():
        return
    with torch.device("meta"):
        needed = 4 * count_parameters(build_network(read_config(path)[0]))
    if needed > free:
        raise FirthError(
            f"{name} does not fit into memory: its float32 weights are {needed / 2**30:.1f} GiB, "
            f"and {free / 2**30:.1f} GiB are free; choose a smaller model or another machine."
        )


def untrained_model(name: AnyModel, tokenizer: AnyTokenizer, *, scratch: bool, seed: int) -> Model:
    """Build the network of a preset for a tokenizer, with random weights."""
    if not isinstance(name, str) or not scratch:
        raise UsageError("`tokenizer` is for a preset with random weights: add `scratch`.")
    chosen, own = preset(name), load_tokenizer(tokenizer)
    network = build_network(preset_config(chosen, own), chosen.heads)
    network.read_vocabulary(own)
    if chosen.objective in OBJECTIVES:
        own = pretraining_tokenizer(chosen.objective, own)
    return Model(initialise(network, seed), own, source=PRESET + name)


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
