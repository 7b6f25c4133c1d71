"""Attention weights of token ids, one layer at a time.

    H  heads     Q  queries     K  keys

The parts of a network are `encoder` and `decoder` (self-attention) and `cross` (from the decoder's
tokens to the encoder's). Layers and heads are counted from 1 (Clark et al. 2019: "head 8-10"), or
from the end with negative numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firth.inference.explanation import require_transformer
from firth.inference.scoring.log_likelihood import check_length
from firth.models.attention_recording import AttentionRecorder, RecordedAttention
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.stack import Stack
from firth.models.transformer import Transformer, max_input_length, max_output_length
from firth.utils.errors import UsageError

Ids = Sequence[int] | Tensor
Numbers = Sequence[int] | None  # of layers or heads; None: all


class AttentionMap(NamedTuple):
    """The attention weights of one layer."""

    part: str  # encoder, decoder or cross
    layer: int  # counted from 1
    weights: Tensor  # (H, Q, K) float32; each row adds up to 1


def attention_maps(
    network: LanguageNetwork,
    ids: Ids,
    target_ids: Ids = (),
    *,
    layers: Numbers = None,
    heads: Numbers = None,
    prefix: int | None = None,
    segments: Sequence[int] | None = None,
) -> Iterator[AttentionMap]:
    """Run a network on one sequence and yield its attention weights, layer by layer.

    The queries are the tokens: `ids`, or for `decoder` and `cross` of an encoder-decoder the
    `target_ids`, which begin with the decoder's start token; without them only the encoder runs.
    The keys are the tokens after those of `virtual_tokens`. `prefix` tokens of a decoder attend in
    both directions; by default all of a prefix language model, else none. `segments` are those of
    a pair of texts.
    """
    network = require_transformer(network)
    parts = network_parts(network, encodes_only=not len(target_ids))
    chosen = _chosen_layers(parts, layers)
    num_heads = {part: stack.config.num_heads for part, stack in parts.items()}
    chosen_heads = {
        part: slice(None) if heads is None else [head - 1 for head in numbers]
        for part, numbers in resolve_numbers(heads, num_heads, "head").items()
    }
    source, target = (
        torch.as_tensor(tokens, dtype=torch.long, device=network.device)
        for tokens in (ids, target_ids)
    )
    _check_lengths(network, len(source), len(target))
    inputs = {} if segments is None else {"segments": torch.as_tensor(segments).to(source)}
    recorded = _record(network, source, target, chosen, prefix, **inputs)
    num_rows = {part: len(source if i == 0 else target) for i, part in enumerate(parts)}
    return (
        # a trained prompt (prompt tuning) has rows of its own, before those of the tokens
        AttentionMap(part, layer, recorded[part][layer - 1].weights()[chosen_heads[part], -rows:])
        for part, rows in num_rows.items()
        for layer in chosen[part]
        if chosen_heads[part] != []
    )


def network_parts(network: Transformer, *, encodes_only: bool = False) -> dict[str, Stack]:
    """Return the stack of each part: of one part, or of encoder, decoder and cross.

    An encoder-decoder that `encodes_only`, such as a classifier, has one part, too.
    """
    stacks = {"encoder": network.encoder, "decoder": network.decoder}
    if network.encoder is not None and encodes_only:
        return {"encoder": network.encoder}
    if network.config.architecture == "encoder-decoder":
        stacks["cross"] = network.decoder
    return {part: stack for part, stack in stacks.items() if stack is not None}


def virtual_tokens(network: Transformer, part: str) -> list[str]:
    """Name the trained keys before those of the tokens (prefix tuning, prompt tuning)."""
    stack = network_parts(network)[part]
    names = list[str]()
    if stack.prefix is not None:
        pairs = stack.prefix().cross if part == "cross" else stack.prefix().own
        names += [f"prefix {i + 1}" for i in range(len(pairs[0][0]) if pairs else 0)]
    reading = network.encoder if part == "cross" else stack  # the stack whose tokens are keys
    if reading is not None and reading.prompt is not None:
        names += [f"prompt {i + 1}" for i in range(len(reading.prompt()))]
    return names


def resolve_numbers(numbers: Numbers, counts: Mapping[str, int], what: str) -> dict[str, list[int]]:
    """Return the layers or heads of each part that has them, counted from 1; None: all.

    >>> resolve_numbers([1, -1], {"encoder": 6, "decoder": 4}, "layer")
    {'encoder': [1, 6], 'decoder': [1, 4]}
    >>> resolve_numbers([5], {"encoder": 6, "decoder": 4}, "layer")
    {'encoder': [5], 'decoder': []}
    """
    if numbers is not None and not len(numbers):
        raise UsageError(f"The list of {what}s is empty: name some, or omit it for all.")
    largest = max(counts.values())
    for number in numbers or ():
        if not 1 <= abs(number) <= largest:
            raise UsageError(
                f"There is no {what} {number}: this model has {what}s 1 to {largest}, or from the "
                f"end -1 to -{largest}."
            )
    return {
        part: [
            number if number > 0 else count + 1 + number
            for number in (range(1, count + 1) if numbers is None else numbers)
            if abs(number) <= count
        ]
        for part, count in counts.items()
    }


def attention_arrays(
    network: LanguageNetwork,
    ids: Ids,
    target_ids: Ids = (),
    *,
    layers: Numbers = None,
    heads: Numbers = None,
) -> dict[str, NDArray[np.float32]]:
    """Return the weights of all chosen layers by part, each (layers, H, Q, K).

    A part that has none of the layers or heads is left out.
    """
    counts = _chosen_layers(network_parts(require_transformer(network)), layers)
    maps = attention_maps(network, ids, target_ids, layers=layers, heads=heads)
    arrays = dict[str, NDArray[np.float32]]()
    for part, own in groupby(maps, key=lambda one: one.part):
        for i, one in enumerate(own):
            if i == 0:
                arrays[part] = np.empty((len(counts[part]), *one.weights.shape), np.float32)
            arrays[part][i] = one.weights.cpu().numpy()
    return arrays


def _chosen_layers(parts: Mapping[str, Stack], layers: Numbers) -> dict[str, list[int]]:
    return resolve_numbers(layers, {part: stack.layers for part, stack in parts.items()}, "layer")


def _check_lengths(network: Transformer, source: int, target: int) -> None:
    if target and network.config.architecture != "encoder-decoder":
        raise UsageError("Only an encoder-decoder has a target: omit it.")
    if not source:
        raise UsageError("There are no tokens, so there is no attention to show: add a word.")
    check_length(source, max_input_length(network))
    check_length(target, max_output_length(network))


@torch.no_grad()
def _record(
    network: Transformer,
    source: Tensor,
    target: Tensor,
    layers: Mapping[str, list[int]],
    prefix: int | None,
    **inputs: Any,
) -> dict[str, dict[int, RecordedAttention]]:
    """Run the network and return the queries and keys of layers, counted from 0, by part."""
    recorders = {part: AttentionRecorder({n - 1 for n in layers[part]}) for part in layers}
    device, config = network.device, network.config
    tokens = source
    if config.has_encoder:
        mask = Mask([len(source)], device=device)
        memory = network.encode(source, mask, recorder=recorders["encoder"], **inputs)
        tokens, prefix, inputs = target, 0, dict(memory=memory, memory_mask=mask)
    elif prefix is None:
        prefix = config.prefix_length(len(source))
    if "decoder" in layers:
        causal = Mask([len(tokens)], prefix=[prefix], device=device)
        network(tokens, causal, recorder=recorders["decoder"], **inputs)
    recorded = {part: recorder.self_attention for part, recorder in recorders.items()}
    if "cross" in recorded:
        recorded["cross"] = recorders["decoder"].cross
    return recorded
