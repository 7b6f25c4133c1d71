"""Which decoders the steps in C and in Triton support: those without adapters and hooks."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from firth.models.blocks import Block
from firth.models.heads import LanguageHead
from firth.models.hooks import has_global_hooks, has_hooks
from firth.models.layers import Attention, FeedForward, Residual
from firth.models.stack import Embedding, Stack
from firth.models.transformer import Transformer

# The containers of a decoder's layers; a model with any other (an adapter, say) is left to torch.
CONTAINERS = {
    *(Transformer, Stack, Embedding, Block, Attention, FeedForward, Residual, LanguageHead),
    *(nn.Dropout, nn.ModuleList, nn.ModuleDict),
}


def is_plain_decoder(network: Transformer, layers: Collection[type[nn.Module]]) -> bool:
    """Tell whether a model is a decoder in evaluation mode that consists of these layers alone."""
    config, stack = network.config, network.stack
    head = dict(network.heads.items()).get("language")
    return (
        config.architecture == "decoder"
        and isinstance(head, LanguageHead)
        and head.extension is None
        and not network.training
        and not torch.is_autocast_enabled(network.device.type)
        and config.position_embedding != "sinusoidal"
        and stack.embedding.segments is None
        and stack.embedding.project is None
        and stack.relative is None
        and not has_global_hooks()
        and all(
            (type(module) in CONTAINERS or type(module) in layers) and not has_hooks(module)
            for module in network.modules()
        )
    )
