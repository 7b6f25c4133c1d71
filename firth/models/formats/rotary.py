"""What families with rotary positions write in several ways: bases, kinds of layers, windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firth.errors import InputError
from firth.models.config import ModelConfig

FULL, SLIDING = "full_attention", "sliding_attention"


def one_base(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The base of the angles, as older and newer files write it."""
    found = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    return {"theta": _base(found, theirs.get("rope_theta", 10_000.0))}


def two_bases(
    theirs: Mapping[str, Any], whole: tuple[str, float], local: tuple[str, float]
) -> dict[str, float]:
    """The bases where all is seen and in a window; older files call them by other names."""
    found = theirs.get("rope_parameters") or {FULL: theirs.get("rope_scaling")}
    bases = [
        _base(found.get(kind) or {}, theirs.get(old, usual))
        for kind, (old, usual) in ((FULL, whole), (SLIDING, local))
    ]
    return {"theta": bases[0], "local_theta": bases[1]}


def _base(values: Mapping[str, Any], usual: float) -> float:
    kind = values.get("rope_type", values.get("type", "default"))
    if kind != "default":
        raise InputError(f"Rotary positions of the kind {kind!r} are not known, only 'default'.")
    return float(values.get("rope_theta", usual))


def write_two_bases(config: ModelConfig) -> dict[str, Any]:
    """What `two_bases` reads."""
    bases = {FULL: config.theta, SLIDING: config.local_theta}
    return {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}


def sliding(theirs: Mapping[str, Any], usual: list[str]) -> tuple[int, ...]:
    """The layers that see only a window."""
    kinds = theirs.get("layer_types") or usual
    return tuple(i for i, kind in enumerate(kinds) if kind == SLIDING)


def layer_types(config: ModelConfig) -> list[str]:
    """What `sliding` reads."""
    return [SLIDING if i in config.windowed else FULL for i in range(config.layers)]
