"""The architectures of a comparison: how each is pre-trained, and for how many tokens.

All have the same hidden size and number of blocks, and are trained on the same documents in the
same order: the order depends on the seed alone. The two stacks of the encoder-decoder share the
blocks, and its feed-forward layers are narrower by the size of the cross-attention, so that all
have the same number of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firth.study.cells.blank_cells import BOTH, LEFT

ENCODER, DECODER, ENCODER_DECODER = "encoder", "decoder", "encoder-decoder"
PREFIX_LM, HYBRID, CAUSAL_THEN_MASKED = "prefix LM", "hybrid", "causal-then-masked"
EQUAL_TOKENS, EQUAL_FLOPS, EQUAL_SECONDS = "tokens", "FLOPs", "seconds"
TABLES = (EQUAL_TOKENS, EQUAL_FLOPS, EQUAL_SECONDS)


@dataclass(frozen=True, kw_only=True)
class ArchitecturePlan:
    """An architecture with its objective, and what a text with a blank shows it."""

    preset: str
    objective: str
    sees: str  # of a text with a blank
    continues: bool = False  # predicts next tokens, so that bits per byte are defined
    overrides: Mapping[str, Any] = field(default_factory=dict)


PLANS = {
    ENCODER: ArchitecturePlan(preset="encoder-tiny", objective="masked", sees=BOTH),
    DECODER: ArchitecturePlan(preset="decoder-tiny", objective="causal", sees=LEFT, continues=True),
    ENCODER_DECODER: ArchitecturePlan(
        preset="seq2seq-tiny", objective="span-corruption", sees=BOTH
    ),
    PREFIX_LM: ArchitecturePlan(
        preset="decoder-tiny", objective="prefix", sees=LEFT, continues=True
    ),
    HYBRID: ArchitecturePlan(preset="decoder-tiny", objective="hybrid", sees=BOTH, continues=True),
    # One run, so that no document is seen twice (Gisserot-Boukhlef et al. 2025 compare the two).
    CAUSAL_THEN_MASKED: ArchitecturePlan(
        preset="decoder-tiny",
        objective="hybrid",
        sees=BOTH,
        continues=True,
        overrides={"objective.masked_fraction": "0:0.5,1"},
    ),
}


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The size that all architectures have, and what their runs share."""

    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_size: int
    max_length: int
    batch_tokens: int
    mask_prob: float


def pretraining_options(name: str, size: ModelSize) -> dict[str, Any]:
    """Return the arguments of `pretrain` for an architecture, without a budget."""
    plan = PLANS[name]
    overrides: dict[str, Any] = {
        "model.num_layers": size.num_layers,
        "model.hidden_size": size.hidden_size,
        "model.num_heads": size.num_heads,
        "model.head_dim": size.hidden_size // size.num_heads,
        "model.ffn_size": size.ffn_size,
        "validate_every": 1.0,
        "validate_tokens": 4096,
        **plan.overrides,
    }
    if name == ENCODER_DECODER:
        overrides |= encoder_decoder_layers(size)
    if plan.objective in ("masked", "hybrid"):
        overrides["objective.mask_prob"] = size.mask_prob
    return {
        "preset": plan.preset,
        "objective": plan.objective,
        "max_length": size.max_length,
        "batch_tokens": size.batch_tokens,
        "overrides": overrides,
    }


def encoder_decoder_layers(size: ModelSize) -> dict[str, int]:
    """Divide the blocks, and take the weights of the cross-attention from the feed-forward layers.

    A cross-attention has 4 h² weights and a gated feed-forward layer 3 h f.

    >>> size = ModelSize(num_layers=2, hidden_size=64, num_heads=2, ffn_size=176, max_length=128,
    ...                  batch_tokens=1024, mask_prob=0.3)
    >>> encoder_decoder_layers(size)
    {'model.num_layers': 1, 'model.num_decoder_layers': 1, 'model.ffn_size': 133}
    """
    decoder = size.num_layers // 2
    fewer = round(4 * decoder * size.hidden_size / (3 * size.num_layers))
    return {
        "model.num_layers": size.num_layers - decoder,
        "model.num_decoder_layers": decoder,
        "model.ffn_size": size.ffn_size - fewer,
    }


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """What pre-training an architecture costs for each token of text."""

    tokens_per_second: float
    flops_per_token: float


def equal_budget(
    table: str, tokens: int, own: TrainingCost, reference: TrainingCost, batch_tokens: int
) -> int:
    """Return the tokens that cost as much as `tokens` of the reference, in whole batches.

    >>> slow = TrainingCost(tokens_per_second=500, flops_per_token=3e6)
    >>> fast = TrainingCost(tokens_per_second=1000, flops_per_token=1e6)
    >>> [equal_budget(table, 9000, slow, fast, 100) for table in TABLES]
    [9000, 3000, 4500]
    """
    factor = {
        EQUAL_TOKENS: 1.0,
        EQUAL_FLOPS: reference.flops_per_token / own.flops_per_token,
        EQUAL_SECONDS: own.tokens_per_second / reference.tokens_per_second,
    }[table]
    return batch_tokens * max(1, round(tokens * factor / batch_tokens))
