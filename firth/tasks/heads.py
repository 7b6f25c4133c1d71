"""The head a task needs, put on a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from firth.errors import InputError, MismatchError, Misuse
from firth.models.formats.directory import labelled
from firth.models.heads import LanguageHead, make_head
from firth.models.initial import initialise_head
from firth.models.labels import LABEL_HEADS, LabelHead
from firth.models.transformer import Transformer
from firth.tasks.task import Facts
from firth.training.settings import typed, unknown

# What may be set of a head: `head.layers=2`.
OPTIONS = {
    "layers": ("label_layers", "int"),
    "activation": ("label_activation", "str"),
    "pooling": ("pooling", "str"),
    "norm": ("label_norm", "bool"),
    "bias": ("label_bias", "bool"),
}
# A linear probe sees plain vectors.
PROBE = {"layers": 0, "pooling": "mean", "norm": False, "bias": True}


def with_head(
    network: Transformer, head: str, facts: Facts, options: Mapping[str, Any], seed: int
) -> list[str]:
    """Put a head for these labels on a network, unless it has it; the names of what must learn."""
    if head not in LABEL_HEADS:
        if options:
            raise Misuse(
                f"The language head is as it is: head.{next(iter(options))} cannot be set."
            )
        if head not in network.heads:
            raise MismatchError("This model has no language head to write with.")
        return [head]
    for name in options:
        if name not in OPTIONS:
            raise unknown(f"head.{name}", [f"head.{known}" for known in OPTIONS])
    if not options and _has_it(network, head, facts):
        return [name for name in ("pooler", head) if name in network.heads]
    config, heads = labelled(network.config, head, facts.labels, facts.labelling)
    chosen = {
        OPTIONS[name][0]: typed(f"head.{name}", value, OPTIONS[name][1])
        for name, value in options.items()
    }
    try:
        config = replace(config, **chosen)
    except InputError as error:
        raise Misuse(f"A head cannot be made so: {error}") from error
    if config.pooling != "first":
        heads = [head]  # a pooler reads the first token
    known = config == network.config and head in network.heads
    for name in {*LABEL_HEADS, "pooler"} & set(network.heads):
        if name not in heads or (name == head and not known):
            del network.heads[name]
    network.config = config
    for name in heads:
        if name not in network.heads:
            network.heads[name] = make_head(name, config).to(network.tokens.weight)
            initialise_head(network, name, seed)
    if not known:
        _inherit(network, head)
    return heads


def _has_it(network: Transformer, head: str, facts: Facts) -> bool:
    """Whether a network was taught these labels before."""
    own = (network.config.label_head, network.config.labels, network.config.labelling)
    return head in network.heads and own == (head, facts.labels, facts.labelling)


@torch.no_grad()
def _inherit(network: Transformer, head: str) -> None:
    """ModernBERT's heads share the layer of its language head: begin with what it has learned."""
    heads = dict(network.heads.items())
    old, new = heads.get("language"), heads[head]
    if not isinstance(old, LanguageHead) or not isinstance(new, LabelHead) or old.norm is None:
        return
    if old.transform is not None and len(new.layers) == 1 and network.config.label_norm:
        new.layers[0].load_state_dict(old.transform.state_dict())
        new.norm.load_state_dict(old.norm.state_dict())


def drop_language_head(network: Transformer) -> None:
    """A model with a head for labels is saved without the one it was pre-trained with."""
    if network.config.label_head:
        for name in set(network.heads) - {network.config.label_head, "pooler"}:
            del network.heads[name]
