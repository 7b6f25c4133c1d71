"""Config fields of rotary positions and sliding windows, in older and newer files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firth.models.config import ModelConfig
from firth.utils.errors import InputError

FULL, SLIDING = "full_attention", "sliding_attention"


def read_rope_theta(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Read rope_theta from older and newer files."""
    found = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    return {"rope_theta": _base(found, theirs.get("rope_theta", 10_000.0))}


def read_two_rope_thetas(
    theirs: Mapping[str, Any], full: tuple[str, float], local: tuple[str, float]
) -> dict[str, float]:
    """Read rope_theta of layers with full and with sliding-window attention.

    `full` and `local` are the name in older files and the default.
    """
    found = theirs.get("rope_parameters") or {FULL: theirs.get("rope_scaling")}
    bases = [
        _base(found.get(kind) or {}, theirs.get(old, default))
        for kind, (old, default) in ((FULL, full), (SLIDING, local))
    ]
    return {"rope_theta": bases[0], "local_rope_theta": bases[1]}


def _base(values: Mapping[str, Any], default: float) -> float:
    kind = values.get("rope_type", values.get("type", "default"))
    if kind != "default":
        raise InputError(f"The rope_type {kind!r} is not supported, only 'default'.")
    return float(values.get("rope_theta", default))


def write_two_rope_thetas(config: ModelConfig) -> dict[str, Any]:
    """Return the RoPE parameters of full and of sliding-window attention layers."""
    bases = {FULL: config.rope_theta, SLIDING: config.local_rope_theta}
    return {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}


def sliding_layers(theirs: Mapping[str, Any], default: list[str]) -> tuple[int, ...]:
    """Return the layers with sliding-window attention."""
    kinds = theirs.get("layer_types") or default
    return tuple(i for i, kind in enumerate(kinds) if kind == SLIDING)


def layer_types(config: ModelConfig) -> list[str]:
    """Return the attention type of each layer: full or sliding window."""
    return [SLIDING if i in config.windowed_layers else FULL for i in range(config.num_layers)]
