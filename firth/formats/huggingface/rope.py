"""Config fields of rotary positions and sliding windows, in older and newer files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from firth.models.transformer_config import RopeScaling, TransformerConfig
from firth.utils.errors import InputError

FULL, SLIDING = "full_attention", "sliding_attention"


# Our fields of a scaling -> theirs, in the kinds that have them.
SCALING = {
    "linear": {},
    "llama3": {"slow": "low_freq_factor", "fast": "high_freq_factor"},
    "yarn": {"slow": "beta_slow", "fast": "beta_fast", "truncate": "truncate"},
}
YARN_FAST = 32.0  # default of beta_fast


def read_rope(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Read the base and the scaling of rotary frequencies from older and newer files."""
    found = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    return {
        "rope_theta": _base(found, theirs.get("rope_theta", 10_000.0)),
        "rope_scaling": _scaling(found, theirs),
    }


def read_two_ropes(
    theirs: Mapping[str, Any], full: tuple[str, float], local: tuple[str, float], windowed: bool
) -> dict[str, Any]:
    """Read the same for layers with full and with sliding-window attention, if there are any.

    `full` and `local` are the name of the base in older files and its default.
    """
    found = theirs.get("rope_parameters") or {FULL: theirs.get("rope_scaling")}
    kinds = [found.get(FULL) or {}, found.get(SLIDING) or {}]
    bases = [
        _base(values, theirs.get(old, default))
        for values, (old, default) in zip(kinds, (full, local), strict=True)
    ]
    scaling, local_scaling = (_scaling(values, theirs) for values in kinds)
    if windowed and local_scaling not in (None, scaling):
        raise InputError("RoPE scaling of the layers with a sliding window is not supported.")
    return {
        "rope_theta": bases[0],
        "local_rope_theta": bases[1] if windowed else bases[0],
        "rope_scaling": scaling,
        "scale_local_rope": not windowed or local_scaling == scaling,
    }


def _base(values: Mapping[str, Any], default: float) -> float:
    return float(values.get("rope_theta", default))


def _scaling(values: Mapping[str, Any], theirs: Mapping[str, Any]) -> RopeScaling | None:
    """Read a scaling; missing values are those of `transformers`."""
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return None
    if kind not in SCALING:
        raise InputError(
            f"The rope_type {kind!r:.80} is not supported, only default, {', '.join(SCALING)}."
        )
    found = {ours: values[key] for ours, key in SCALING[kind].items() if values.get(key)}
    factor: Any = values.get("factor")
    if kind == "linear":
        return RopeScaling(kind=kind, factor=factor)
    longest = theirs["max_position_embeddings"]
    original = theirs.get("original_max_position_embeddings") or values.get(
        "original_max_position_embeddings", longest
    )
    if kind == "yarn":
        factor = factor or longest / original
        found = {"fast": YARN_FAST, "attention_factor": _attention_factor(values, factor)} | found
        found["truncate"] = values.get("truncate", True)
    return RopeScaling(kind=kind, factor=factor, original_positions=original, **found)


def _attention_factor(values: Mapping[str, Any], factor: float) -> float:
    """Return YaRN's factor of queries and keys (Peng et al. 2023, section 3.4)."""
    numerator, denominator = values.get("mscale"), values.get("mscale_all_dim")
    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    if numerator and denominator:
        return _log_factor(factor, numerator) / _log_factor(factor, denominator)
    return _log_factor(factor)


def _log_factor(factor: float, scale: float = 1.0) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def write_rope(config: TransformerConfig) -> dict[str, Any]:
    """Return the base and the scaling of rotary frequencies; what is usual is left out."""
    scaling, base = config.rope_scaling, {"rope_theta": config.rope_theta}
    if scaling is None:
        return {"rope_type": "default", **base}
    values = {"rope_type": scaling.kind, **base, "factor": scaling.factor}
    if scaling.kind != "linear":
        values["original_max_position_embeddings"] = scaling.original_positions
    values |= {key: getattr(scaling, ours) for ours, key in SCALING[scaling.kind].items()}
    if scaling.kind == "yarn":
        usual = {"beta_slow": 1.0, "beta_fast": YARN_FAST, "truncate": True}
        values = {key: value for key, value in values.items() if usual.get(key) != value}
        if scaling.attention_factor != _log_factor(scaling.factor):
            values["attention_factor"] = scaling.attention_factor
    return values


def write_two_ropes(config: TransformerConfig) -> dict[str, Any]:
    """Return the RoPE parameters of full and of sliding-window attention layers."""
    local = replace(config, rope_theta=config.local_rope_theta)
    if not config.scale_local_rope:
        local = replace(local, rope_scaling=None)
    return {FULL: write_rope(config), SLIDING: write_rope(local)}


def sliding_layers(theirs: Mapping[str, Any], default: list[str]) -> tuple[int, ...]:
    """Return the layers with sliding-window attention."""
    kinds = theirs.get("layer_types") or default
    return tuple(i for i, kind in enumerate(kinds) if kind == SLIDING)


def layer_types(config: TransformerConfig) -> list[str]:
    """Return the attention type of each layer: full or sliding window."""
    return [SLIDING if i in config.windowed_layers else FULL for i in range(config.num_layers)]
