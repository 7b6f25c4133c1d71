"""Join a pre-trained encoder and a decoder with new cross-attention; separate shared weights.

Both keep their weights, sizes and vocabularies (Rothe et al. 2020, "Leveraging Pre-trained
Checkpoints for Sequence Generation Tasks"). Cross-attention starts with zero output: before
fine-tuning, the joined model generates what the decoder alone generates.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from firth.models.initialization import initialise_parameters
from firth.models.layers import GemmaRMSNorm
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import MismatchError

NEW = (".cross.", ".cross_norm.")  # parts of the names of new parameters
SELF_NORM, CROSS_NORM = ".attention_norm.outer.", ".cross_norm.outer."  # after the residual sum


def join(encoder: Transformer, decoder: Transformer, seed: int = 0) -> Transformer:
    """Build an encoder-decoder from copies of an encoder and a decoder.

    >>> sizes = dict(vocab_size=9, num_layers=1, num_heads=2, ffn_size=8, max_positions=8)
    >>> encoder = TransformerConfig(architecture="encoder", hidden_size=6, **sizes)
    >>> decoder = TransformerConfig(architecture="decoder", hidden_size=4, bos_token_id=1, **sizes)
    >>> network = join(Transformer(encoder), Transformer(decoder, ["language"]))
    >>> network.config.encoder.hidden_size, network.config.hidden_size
    (6, 4)
    >>> len(cross_attention_names(network))
    8
    """
    config = joined_config(encoder.config, decoder.config)
    if "language" not in decoder.heads:
        raise MismatchError("The second model has no language head, so it cannot generate text.")
    with torch.device("meta"):
        network = Transformer(config, ["language"])
    given, like = _weights(encoder, decoder), decoder.tokens.weight
    if unknown := sorted(set(given) - set(network.state_dict())):
        raise MismatchError(
            f"Only models without adapters can be joined, but one of these has {unknown[0]}; "
            "merge or remove its adapters first."
        )
    state = {
        name: given[name].detach().to(like.device, like.dtype, copy=True)
        if name in given
        else torch.empty(tensor.shape, device=like.device, dtype=like.dtype)
        for name, tensor in network.state_dict().items()
    }
    network.load_state_dict(state, assign=True)
    initialise_parameters(network, [name for name in state if name not in given], seed)
    for name, module in network.named_modules():
        _zero_output(config, name, module)
    return network


def joined_config(encoder: TransformerConfig, decoder: TransformerConfig) -> TransformerConfig:
    """Return the config of the encoder-decoder made of an encoder and a decoder."""
    if encoder.architecture != "encoder":
        raise MismatchError(
            f"The first model must be an encoder, but its architecture is {encoder.architecture}."
        )
    if decoder.architecture != "decoder":
        raise MismatchError(
            f"The second model must be a decoder, but its architecture is {decoder.architecture}."
        )
    bos, eos = decoder.bos_token_id, decoder.eos_token_id
    if bos is None and eos is None:
        raise MismatchError(
            "The second model has neither bos_token_id nor eos_token_id, so generation cannot "
            "start or stop; add them to its config.json."
        )
    return replace(
        decoder,
        architecture="encoder-decoder",
        encoder=replace(encoder, label_head="", labels=()),
        num_layers=encoder.num_layers,
        num_decoder_layers=decoder.num_layers,
        decoder_start_token_id=eos if bos is None else bos,
        eos_token_id=bos if eos is None else eos,
        label_head="",
        labels=(),
        family="",
    )


@torch.no_grad()
def separate_weights(network: Transformer) -> Transformer:
    """Copy a network whose encoder and decoder share weights; in the copy each has its own.

    >>> sizes = dict(vocab_size=9, hidden_size=4, num_layers=1, num_heads=2, ffn_size=8)
    >>> shared = dict(architecture="encoder-decoder", share_encoder_decoder=True, max_positions=8)
    >>> network = Transformer(TransformerConfig(**sizes, **shared))
    >>> len(network.state_dict()), len(separate_weights(network).state_dict())
    (27, 39)
    """
    with torch.device("meta"):
        copy = Transformer(replace(network.config, share_encoder_decoder=False), network.heads)
    given = network.state_dict()
    state = {
        name: given[name if name in given else name.replace("decoder.", "encoder.", 1)].clone()
        for name in copy.state_dict()
    }
    copy.load_state_dict(state, assign=True)
    return copy.train(network.training)


def cross_attention_names(network: nn.Module) -> list[str]:
    """Return the names of the cross-attention parameters, which are not pre-trained."""
    return [name for name, _ in network.named_parameters() if any(part in name for part in NEW)]


def _weights(encoder: Transformer, decoder: Transformer) -> dict[str, Tensor]:
    """Return the weights of both models by their names in the joined one.

    In post-norm decoders the norm after self-attention moves after the new cross-attention: the
    new, untrained norm before it then changes only the queries of cross-attention.
    """
    of_encoder = {
        name: weight
        for name, weight in encoder.state_dict().items()
        if not name.startswith("heads.")
    }
    of_encoder["encoder_tokens.weight"] = of_encoder.pop("tokens.weight")
    of_decoder = {
        name.replace(SELF_NORM, CROSS_NORM): weight
        for name, weight in decoder.state_dict().items()
        if not name.startswith("heads.") or name.startswith("heads.language.")
    }
    return of_encoder | of_decoder


@torch.no_grad()
def _zero_output(config: TransformerConfig, name: str, module: nn.Module) -> None:
    """Make the output of cross-attention zero.

    If a norm follows it, the norm's weight is zeroed: it would scale up any small output.
    """
    last = "cross_norm.after" if config.norm_position == "both" else "cross.output"
    if name.endswith(f".{last}"):
        weight = module.get_parameter("weight")
        weight.fill_(-1.0 if isinstance(module, GemmaRMSNorm) else 0.0)
