"""Logits of padded batches, as users of `transformers` know them.

    B  rows     L  positions of a row     N  tokens that are not padding     V  vocabulary size

The networks themselves take packed batches: rows are packed before and padded again afterwards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from firth.inference.scoring.log_likelihood import check_length
from firth.inference.scoring.token_scoring import check_language_head
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.transformer import max_input_length, max_output_length
from firth.utils.errors import UsageError


class PackedRows(NamedTuple):
    """The tokens of padded rows, one after another, and where they are in the rows."""

    tokens: Tensor  # (N,)
    kept: Tensor  # (B, L) True for tokens, False for padding
    lengths: Any  # (B,)

    def pad(self, values: Tensor) -> Tensor:
        """Copy the values of tokens to padded rows; those of padding are 0."""  # (N, V) ->
        rows = values.new_zeros(*self.kept.shape, values.shape[-1])  # (B, L, V)
        rows[self.kept] = values
        return rows


def padded_logits(
    network: LanguageNetwork,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    token_type_ids: Tensor | None = None,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
) -> Tensor:
    """Compute the logits at each position: (B, L) -> (B, L, V); see `Model.forward`."""
    check_language_head(network)
    config, device = network.config, network.device
    ids = _as_rows("input_ids", input_ids, device)
    source = pack_rows(ids, attention_mask, config.input_config.vocab_size)
    check_length(int(source.lengths.max(initial=0)), max_input_length(network))
    mask = (Mask if config.has_encoder else Mask.causal)(source.lengths, device=device)
    inputs: dict[str, Any] = {}
    if token_type_ids is not None:
        inputs["segments"] = _as_rows("token_type_ids", token_type_ids, device)[source.kept]
    if config.architecture != "encoder-decoder":
        if decoder_input_ids is not None:
            raise UsageError(f"decoder_input_ids are for encoder-decoders, not {_named(network)}.")
        return source.pad(network.logits(network(source.tokens, mask, **inputs)))
    memory = network.encode(source.tokens, mask, **inputs)
    if decoder_input_ids is None:
        decoder_input_ids, decoder_attention_mask = _shifted(network, ids), attention_mask
    targets = _as_rows("decoder_input_ids", decoder_input_ids, device)
    target = pack_rows(targets, decoder_attention_mask, config.vocab_size)
    check_length(int(target.lengths.max(initial=0)), max_output_length(network))
    causal = Mask.causal(target.lengths, device=device)
    return target.pad(
        network.logits(network(target.tokens, causal, memory=memory, memory_mask=mask))
    )


def pack_rows(ids: Tensor, attention_mask: Tensor | None, vocab_size: int) -> PackedRows:
    """Pack the tokens of padded rows; `attention_mask` is 1 for tokens and 0 for padding.

    >>> pack_rows(torch.tensor([[5, 6], [7, 0]]), torch.tensor([[1, 1], [1, 0]]), 8).tokens.tolist()
    [5, 6, 7]
    """
    kept = torch.ones_like(ids, dtype=torch.bool)
    if attention_mask is not None:
        kept = _as_rows("attention_mask", attention_mask, ids.device) != 0
        if kept.shape != ids.shape:
            raise UsageError(
                f"The attention mask has the shape {tuple(kept.shape)}, but the token ids "
                f"{tuple(ids.shape)}; both are [batch, length]."
            )
    tokens = ids[kept]
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise UsageError(
            f"The token ids are from {int(tokens.min())} to {int(tokens.max())}, but the model's "
            f"vocab_size is {vocab_size:,}; mark padding with 0 in the attention mask."
        )
    return PackedRows(tokens, kept, kept.sum(1).cpu().numpy())


def _as_rows(name: str, values: Any, device: torch.device) -> Tensor:
    """Convert an argument to a tensor of integers (B, L)."""
    try:
        rows = torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} must be a tensor [batch, length] ({error}).") from error
    if rows.dim() != 2 or rows.is_floating_point() or rows.is_complex():
        raise UsageError(
            f"{name} must be a tensor of integers [batch, length], not {rows.dtype} of shape "
            f"{tuple(rows.shape)}."
        )
    return rows


def _shifted(network: LanguageNetwork, ids: Tensor) -> Tensor:
    """Return the decoder's input that predicts the encoder's: shifted right by one position."""
    if network.config.encoder is not None:
        raise UsageError(
            "The encoder and the decoder of this model have different vocabularies: add "
            "decoder_input_ids."
        )
    start = ids.new_full((len(ids), 1), network.config.decoder_start_token_id or 0)
    return torch.cat([start, ids[:, :-1]], dim=1)


def _named(network: LanguageNetwork) -> str:
    return f"a model of architecture {network.config.architecture}"
