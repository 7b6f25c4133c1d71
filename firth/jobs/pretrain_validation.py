"""Validation during pre-training: losses, a few samples, and saving of the best model."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from firth.data.shards import Shards
from firth.inference.samples import samples
from firth.model import Model
from firth.models.networks import build_network
from firth.objectives.batch import Batch
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.data_loader import source_validation_batches, validation_batches
from firth.training.distributed.divided_tensors import is_divided, whole_tensors
from firth.training.distributed.ranks import current_ranks
from firth.training.log import Metrics
from firth.training.loop import Callbacks
from firth.training.losses import TrainingModule, mean_losses
from firth.training.pretrain_config import PretrainRunConfig
from firth.training.runtime import autocast
from firth.utils.errors import StorageError

SOURCE_LOSS = "loss "  # before the name of a source: its validation loss
MIN_RISE = 0.01  # relative rise of the validation loss that is called overfitting
NUM_SAMPLES = 3  # texts shown at each validation
SAMPLE_TOKENS = 32  # of each text


def source_batches(
    config: PretrainRunConfig, shards: Shards, tokenizer: Tokenizer
) -> dict[str, list[Batch]]:
    """Build the validation batches of each named source."""
    if not shards.source_names or "valid" not in shards.index["splits"]:
        return {}
    return source_validation_batches(config, Shards(shards.path, "valid"), tokenizer)


def source_notes(
    config: PretrainRunConfig, shards: Shards, by_source: Mapping[str, Sequence[Batch]]
) -> list[str]:
    """Return notes about sources that are not trained on or not validated on."""
    omitted = [name for name in shards.source_names if name not in (config.mixture or {name})]
    unvalidated = [name for name in shards.source_names if by_source and name not in by_source]
    notes = [f"Not in the mixture, and so not trained on: {', '.join(omitted)}."] * bool(omitted)
    return notes + [
        f"Too little validation text for a loss of their own: {', '.join(unvalidated)}."
    ] * bool(unvalidated)


def validation_callbacks(
    config: PretrainRunConfig,
    module: TrainingModule,
    model: Model,
    shards: Shards,
    by_source: Mapping[str, Sequence[Batch]],
    callbacks: Callbacks,
) -> Callbacks:
    """Add validation with a few samples, and saving of the best model."""
    if "valid" not in shards.index["splits"]:
        return callbacks
    valid, tokenizer = Shards(shards.path, "valid"), model.require_tokenizer()
    batches = validation_batches(config, valid, tokenizer)
    length = min(SAMPLE_TOKENS, config.model.max_positions // 2)
    texts = [
        tokenizer.decode(valid[i][:length].tolist()) for i in range(min(NUM_SAMPLES, len(valid)))
    ]

    @torch.no_grad()
    def validate() -> Metrics:
        with autocast(config.training, module.device):
            metrics: Metrics = dict(mean_losses(module, batches))
            for name, some in by_source.items():
                metrics[SOURCE_LOSS + name] = mean_losses(module, some)["loss"]
        if not math.isfinite(metrics["loss"]):  # it cannot generate
            return metrics | {"samples": []}
        return metrics | {"samples": samples(module.network, tokenizer, texts)}

    def save_best() -> None:
        assert model.path is not None
        try:
            write_model(model, model.path / "best")
        except StorageError:  # a full disk: the next checkpoint reports it
            shutil.rmtree(model.path / "best", ignore_errors=True)  # not the best any more
        callbacks.on_improvement()

    return replace(callbacks, validate=validate, on_improvement=save_best)


def write_model(model: Model, path: Path) -> str:
    """Write a model on the main rank, with all weights if they are divided; return its format."""
    is_main = current_ranks().is_main
    if any(is_divided(p) for p in model.network.parameters()):
        network = model.network
        whole = whole_tensors(network)
        if not is_main:
            return ""
        joined = build_network(network.config, network.heads)
        joined.load_state_dict(whole)
        return replace(model, network=joined.eval()).write(path)
    return model.write(path) if is_main else ""


def risen_advice(lowest: float, last: float, repeated: bool) -> str:
    """Explain a validation loss above the lowest; `repeated`: the run may have seen a text twice.

    >>> risen_advice(7.352, 7.353, repeated=True)
    ' The difference is small, so this may be noise.'
    """
    if last - lowest < MIN_RISE * lowest:
        return " The difference is small, so this may be noise."
    if not repeated:
        return " No text was seen twice, so this may be noise."
    return (
        " The model overfits: a shorter run, more text, --set model.dropout=0.1 or more "
        "--weight-decay (0.5) may help."
    )
