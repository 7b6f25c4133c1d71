"""An encoder joined to a decoder, which looks at it through new cross attention.

Both keep their weights, their shapes and their vocabularies (Rothe et al. 2020, "Leveraging
Pre-trained Checkpoints for Sequence Generation Tasks"). What is new adds nothing at first: the
joined network writes what the decoder alone writes, whatever the encoder reads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from firth.errors import MismatchError
from firth.models.config import ModelConfig
from firth.models.initial import initialise_some
from firth.models.layers import PlusOne
from firth.models.transformer import Transformer

NEW = (".cross.", ".cross_norm.")  # what stands between the two
SELF, CROSS = ".attention_norm.outer.", ".cross_norm.outer."  # norms behind the sums


def join(encoder: Transformer, decoder: Transformer, seed: int = 0) -> Transformer:
    """One network that reads with an encoder and writes with a decoder, with copies of both.

    >>> shape = dict(vocabulary=9, layers=1, heads=2, inner=8, context=8, begin_id=1)
    >>> reads = Transformer(ModelConfig(architecture="encoder", width=6, **shape))
    >>> writes = Transformer(ModelConfig(architecture="decoder", width=4, **shape), ["language"])
    >>> network = join(reads, writes)
    >>> network.config.reader.width, network.config.width, len(crossing(network))
    (6, 4, 8)
    """
    config = joined(encoder.config, decoder.config)
    if "language" not in decoder.heads:
        raise MismatchError("The second model has no language head, so it cannot write.")
    with torch.device("meta"):
        network = Transformer(config, ["language"])
    given, like = _weights(encoder, decoder), decoder.tokens.weight
    if unknown := sorted(set(given) - set(network.state_dict())):
        raise MismatchError(
            f"Only plain networks can be joined, but there is {unknown[0]} on one of these; merge "
            "or remove its adapters first."
        )
    state = {
        name: given[name].detach().to(like.device, like.dtype, copy=True)
        if name in given
        else torch.empty(tensor.shape, device=like.device, dtype=like.dtype)
        for name, tensor in network.state_dict().items()
    }
    network.load_state_dict(state, assign=True)
    initialise_some(network, [name for name in network.state_dict() if name not in given], seed)
    for name, module in network.named_modules():
        _silence(config, name, module)
    return network


def joined(encoder: ModelConfig, decoder: ModelConfig) -> ModelConfig:
    """The shape of an encoder and a decoder together."""
    if encoder.architecture != "encoder":
        raise MismatchError(
            "The first model, which is to read, must be an encoder, but its architecture is "
            f"{encoder.architecture}."
        )
    if decoder.architecture != "decoder":
        raise MismatchError(
            "The second model, which is to write, must be a decoder, but its architecture is "
            f"{decoder.architecture}."
        )
    begin, end = decoder.begin_id, decoder.end_id
    if begin is None and end is None:
        raise MismatchError(
            "The second model names no token that begins or ends a text, so it cannot tell where "
            "to stop; add bos_token_id and eos_token_id to its config.json."
        )
    return replace(
        decoder,
        architecture="encoder-decoder",
        reader=replace(encoder, label_head="", labels=()),
        layers=encoder.layers,
        decoder_layers=decoder.layers,
        start_id=end if begin is None else begin,
        end_id=begin if end is None else end,
        label_head="",
        labels=(),
        family="",
    )


def crossing(network: Transformer) -> list[str]:
    """The parameters between an encoder and a decoder, which a joined network has yet to learn."""
    return [name for name, _ in network.named_parameters() if any(part in name for part in NEW)]


def _weights(encoder: Transformer, decoder: Transformer) -> dict[str, Tensor]:
    """What the two networks give, by its name in the joined one.

    Where norms stand behind the sums, the one of self attention goes behind the new sum: before
    it, a plain norm changes nothing but what cross attention sees.
    """
    reads = {name: w for name, w in encoder.state_dict().items() if not name.startswith("heads.")}
    reads["reader_tokens.weight"] = reads.pop("tokens.weight")
    writes = {
        name.replace(SELF, CROSS): weight
        for name, weight in decoder.state_dict().items()
        if not name.startswith("heads.") or name.startswith("heads.language.")
    }
    return reads | writes


@torch.no_grad()
def _silence(config: ModelConfig, name: str, module: nn.Module) -> None:
    """Let cross attention add nothing at first.

    A norm behind it would make something of the smallest beginning, so then that norm is zero.
    """
    last = "cross_norm.after" if config.norm_place == "both" else "cross.output"
    if name.endswith(f".{last}"):
        weight = module.get_parameter("weight")
        weight.fill_(-1.0 if isinstance(module, PlusOne) else 0.0)
