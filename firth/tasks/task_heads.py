"""Attach a task's head to a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from firth.formats.huggingface.directory import add_label_head
from firth.models.heads import LanguageHead, make_head
from firth.models.initialization import initialise_head
from firth.models.label_heads import LABEL_HEADS, LabelHead, label_modules
from firth.models.language_model import LanguageNetwork
from firth.tasks.task import TaskMetadata
from firth.training.config import parse_value, unknown_setting
from firth.utils.errors import InputError, MismatchError, UsageError

# Settings of a head, such as `head.layers=2` -> config field and type.
OPTIONS = {
    "layers": ("label_layers", "int"),
    "activation": ("label_activation", "str"),
    "pooling": ("pooling", "str"),
    "norm": ("label_norm", "bool"),
    "bias": ("label_bias", "bool"),
    "crf": ("label_crf", "bool"),
}
POOLED = ("classify", "choose")  # heads that read one vector of a sequence
# A linear probe on mean-pooled hidden states.
PROBE = {"layers": 0, "pooling": "mean", "norm": False, "bias": True}


def attach_head(
    network: LanguageNetwork,
    head: str,
    metadata: TaskMetadata,
    options: Mapping[str, Any],
    seed: int,
    layer: str | None = None,
) -> list[str]:
    """Attach a head for these labels, unless present; return the names of the heads to train.

    The head reads a `layer`: a number, "last" or "mix"; None: as the network's head, or the last.
    """
    if head not in LABEL_HEADS:
        if layer not in (None, "last"):
            raise UsageError(
                f"probe:layer={layer} is for tasks with labels or answer spans: the language head "
                "of this task reads the last layer; use probe."
            )
        if options:
            raise UsageError(
                f"The language head has no settings: remove head.{next(iter(options))}."
            )
        if head not in network.heads:
            raise MismatchError("This model has no language head, which the task needs.")
        return [head]
    for name in options:
        if name not in OPTIONS:
            raise unknown_setting(f"head.{name}", [f"head.{known}" for known in OPTIONS])
    wanted = (head, metadata.labels, metadata.label_type)
    own = (network.config.label_head, network.config.labels, network.config.label_type)
    reads = {} if layer is None else input_layer(network, layer)
    same = all(getattr(network.config, name) == value for name, value in reads.items())
    if not options and head in network.heads and own == wanted and same:
        return [name for name in label_modules(network.config) if name in network.heads]
    config, heads = add_label_head(network.config, *wanted)
    chosen = {
        OPTIONS[name][0]: parse_value(f"head.{name}", value, OPTIONS[name][1])
        for name, value in options.items()
    }
    try:
        config = replace(config, **chosen, **reads)
    except InputError as error:
        raise UsageError(f"Invalid settings of the head: {error}") from error
    if config.pooling != "first":
        heads = [head]  # the pooler is for the first token only
    if config.pooling == "attention" and head in POOLED:
        heads = ["attention", head]
    if config.label_layer_mix:
        heads = ["mix", *heads]
    known = config == network.config and head in network.heads
    for name in {*LABEL_HEADS, "mix", "pooler", "attention"} & set(network.heads):
        if name not in heads or (name in (head, "mix") and not known):
            del network.heads[name]
    network.config = config
    for name in heads:
        if name not in network.heads:
            network.heads[name] = make_head(name, config).to(network.tokens.weight)
            initialise_head(network, name, seed)
    if not known:
        _inherit(network, head)
    return heads


def input_layer(network: LanguageNetwork, layer: str) -> dict[str, Any]:
    """Return the config fields for a head that reads a layer; negative numbers count from the end.

    >>> from firth.models.presets import preset
    >>> from firth.models.transformer import Transformer
    >>> input_layer(Transformer(preset("bert-tiny").config), "-2")
    {'label_input_layer': 1, 'label_layer_mix': False}
    """
    last = network.config.num_layers
    if layer not in ("last", "mix") and not -last - 1 <= int(layer) <= last:
        raise UsageError(
            f"probe:layer={layer} is not possible: the layers of this model are 0 (embeddings) to "
            f"{last}, or -{last + 1} to -1."
        )
    if layer != "last" and not network.has_layers:
        raise UsageError(f"probe:layer={layer} needs a Transformer or ELMo; use probe.")
    number = None if layer in ("last", "mix") else int(layer) % (last + 1)
    chosen = None if number == last else number
    return {"label_input_layer": chosen, "label_layer_mix": layer == "mix"}


@torch.no_grad()
def _inherit(network: LanguageNetwork, head: str) -> None:
    """Initialize a head from the layer that ModernBERT's language head shares with it."""
    heads = dict(network.heads.items())
    old, new = heads.get("language"), heads[head]
    if not isinstance(old, LanguageHead) or not isinstance(new, LabelHead) or old.norm is None:
        return
    config = network.config
    alike = len(new.layers) == 1 and config.label_norm and config.pooling != "concat"
    if old.transform is not None and alike:
        new.layers[0].load_state_dict(old.transform.state_dict())
        new.norm.load_state_dict(old.norm.state_dict())


def drop_language_head(network: LanguageNetwork) -> None:
    """Remove the language head of a model that has a label head."""
    if network.config.label_head:
        for name in set(network.heads) - set(label_modules(network.config)):
            del network.heads[name]
