"""The attention patterns of an architecture on a short text, to be drawn and counted.

    n  tokens     p  tokens of the bidirectional prefix     w  window: tokens visible on each side

A connection is a pair (query, key) for which the query may attend to the key; every head of a layer
has the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from firth.models.masks import Mask
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import UsageError
from firth.utils.rng import Bools


class ConnectionCount(NamedTuple):
    """The number of connections of a pattern: as a formula, and as a function of n, p and w."""

    formula: str
    value: Callable[[int, int, int], int]


CONNECTIONS = {
    "bidirectional": ConnectionCount("n²", lambda n, p, w: n * n),
    "causal": ConnectionCount("n(n + 1) / 2", lambda n, p, w: n * (n + 1) // 2),
    "prefix": ConnectionCount(
        "p² + n(n + 1) / 2 - p(p + 1) / 2",
        lambda n, p, w: p * p + n * (n + 1) // 2 - p * (p + 1) // 2,
    ),
    "cross": ConnectionCount("n × n", lambda n, p, w: n * n),
    "bidirectional window": ConnectionCount(
        "n(2w + 1) - w(w + 1)", lambda n, p, w: n * (2 * w + 1) - w * (w + 1)
    ),
    "causal window": ConnectionCount(
        "n(w + 1) - w(w + 1) / 2", lambda n, p, w: n * (w + 1) - w * (w + 1) // 2
    ),
}


@dataclass(frozen=True)
class AttentionPattern:
    """Which tokens of a text may attend to which, in some layers of a model."""

    attention: str  # of which stack: encoder self-attention, cross-attention, …
    pattern: str  # a key of CONNECTIONS
    layers: Sequence[int]
    visible: Bools  # (n, n) row i: what token i attends to
    prefix: int = 0
    window: int = 0

    @property
    def connections(self) -> int:
        """The number of connections of one head in one layer."""
        return int(self.visible.sum())

    def connections_at(self, length: int) -> int:
        """Return the number of connections in a text of another length, with the same window."""
        window = min(self.window, length - 1)
        return CONNECTIONS[self.pattern].value(length, self.prefix, window)


def attention_patterns(
    config: TransformerConfig, length: int, *, prefix: int = 0, window: int = 0
) -> list[AttentionPattern]:
    """Return the patterns of all attention layers of a model on a text of `length` tokens.

    `prefix` tokens of a decoder attend in both directions. `window` replaces the model's window in
    the layers that have one: on a short text, a published window of many tokens hides nothing.

    >>> from firth.models.presets import preset
    >>> [(p.pattern, p.connections) for p in attention_patterns(preset("bert-base").config, 6)]
    [('bidirectional', 36)]
    >>> [(p.pattern, p.connections) for p in attention_patterns(preset("gpt2").config, 6)]
    [('causal', 21)]
    """
    if prefix and config.architecture != "decoder":
        raise UsageError(f"`prefix` is for decoders; this is an {config.architecture}.")
    if not 0 <= prefix <= length:
        raise UsageError(f"`prefix` must be at most the {length} tokens of the text, not {prefix}.")
    if prefix and config.windowed_layers:
        raise UsageError(
            "`prefix` is for decoders without sliding-window layers; this one has some."
        )
    if window and not config.windowed_layers:
        raise UsageError("`window` is for models with sliding-window layers; this one has none.")
    if config.architecture == "encoder-decoder":
        encoder = _self_attention(config.input_config, config.num_layers, "encoder", length)
        decoder = _self_attention(config, config.num_decoder_layers, "decoder", length)
        cross = AttentionPattern(
            "cross-attention from the decoder to the encoder",
            "cross",
            range(config.num_decoder_layers),
            np.ones((length, length), dtype=np.bool_),
        )
        return [*encoder, *decoder, cross]
    return _self_attention(
        config, config.num_layers, config.architecture, length, prefix, window or config.window
    )


def _self_attention(
    config: TransformerConfig,
    layers: int,
    stack: str,
    length: int,
    prefix: int = 0,
    window: int = 0,
) -> list[AttentionPattern]:
    """Return the pattern of the layers that see everything, and of those with a window."""
    mask = Mask([length], prefix=[length if stack == "encoder" else prefix])
    kind = "bidirectional" if stack == "encoder" else "prefix" if prefix > 1 else "causal"
    patterns = []
    for windowed in (False, True):
        chosen = [i for i in range(layers) if (i in config.windowed_layers) == windowed]
        if chosen:
            name = f"{kind} window" if windowed else kind
            size = window if windowed else 0
            visible = mask.visible(size).numpy()
            own = AttentionPattern(f"{stack} self-attention", name, chosen, visible, prefix, size)
            patterns.append(own)
    return patterns
