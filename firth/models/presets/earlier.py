"""Models from before the Transformer, and models of one task that pre-training replaced."""

from __future__ import annotations

from firth.models.presets.row import Preset

EARLIER: dict[str, Preset] = {}
