"""The configuration of a Transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from firth.models.config import ModelConfig, check_type
from firth.utils.errors import InputError, MismatchError

ROPE_SCALINGS = ("linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are scaled for contexts longer than those of pre-training.

    Between `slow` and `fast` rotations within the original context, a frequency changes gradually
    from divided by the factor to unchanged (llama3 and yarn).
    """

    kind: str  # linear, llama3 or yarn
    factor: float
    original_positions: int = 0  # the longest sequence before scaling (llama3 and yarn)
    slow: float = 1.0  # Llama's low_freq_factor, YaRN's beta_slow
    fast: float = 4.0  # Llama's high_freq_factor, YaRN's beta_fast
    truncate: bool = True  # YaRN: round the bounds to whole dimensions
    attention_factor: float = 1.0  # multiplies queries and keys (YaRN)

    def __post_init__(self) -> None:
        for field in fields(self):
            check_type(f"rope_scaling.{field.name}", getattr(self, field.name), str(field.type))
        if self.kind not in ROPE_SCALINGS:
            raise InputError(
                f"The rope_type {self.kind!r:.80} is not supported; known are default, "
                f"{', '.join(ROPE_SCALINGS)}."
            )
        positions = 1 if self.kind == "linear" else self.original_positions
        if not (1 <= self.factor < 1e6 and 0 < self.slow < self.fast < 1e6 and positions > 0):
            raise InputError(f"This rope scaling is not possible: {self}.")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The architecture and sizes of a Transformer; derived defaults are noted as "0: ...".

    >>> sizes = dict(hidden_size=64, num_layers=2, num_heads=4, ffn_size=256)
    >>> config = TransformerConfig(architecture="encoder", vocab_size=99, max_positions=32, **sizes)
    >>> config.head_dim, config.num_kv_heads
    (16, 4)
    >>> TransformerConfig.from_dict(config.to_dict()) == config
    True
    """

    # --- size
    num_heads: int  # attention heads
    num_kv_heads: int = 0  # key-value heads (grouped-query attention); 0: num_heads
    head_dim: int = 0  # 0: hidden_size / num_heads
    ffn_size: int  # hidden size of the feed-forward layer
    encoder: TransformerConfig | None = (
        None  # the encoder's config, if it differs from the decoder's
    )

    # --- embedding
    position_embedding: str = "learned"
    position_offset: int = 0  # index of the first learned position (RoBERTa, BART: 2)
    rope_theta: float = 10_000.0  # base of the rotary frequencies
    local_rope_theta: float = 0.0  # the same in windowed layers; 0: rope_theta
    rope_scaling: RopeScaling | None = None  # for contexts longer than those of pre-training
    scale_local_rope: bool = True  # also in windowed layers (Gemma 3: not)
    relative_attention: str = "none"  # bias: T5; disentangled: DeBERTa
    relative_buckets: int = 32  # buckets of relative distances
    relative_max_distance: int = 128  # larger distances share the last bucket
    num_segments: int = 0  # segment (token type) embeddings (BERT: 2)
    trigrams: bool = False  # project each token embedding with both neighbours (MobileBERT)
    embedding_norm: bool = True  # normalize the sum of the embeddings
    embedding_scale: bool = False  # multiply token embeddings by sqrt(hidden_size)

    # --- block
    norm_position: str = "post"  # post: after the sum; pre: before the sub-layer; both: around it
    first_norm: bool = True  # False: no norm before the first attention layer (ModernBERT)
    gated: bool = False  # gated feed-forward layer (GLU)
    bias: bool = True  # in every projection of the block
    qkv_bias: bool | None = None  # in query, key and value projections; None: as `bias`
    qk_norm: bool = False  # normalize queries and keys (Qwen 3)
    attention_scale: float = 0.0  # factor of the attention scores; 0: 1 / sqrt(head_dim)
    window: int = 0  # tokens visible on each side in windowed layers
    windowed_layers: tuple[int, ...] = ()  # indices of layers with sliding-window attention
    share_layers: bool = False  # all layers share one block (ALBERT)
    # Encoder and decoder blocks share self-attention and feed-forward layers, with their norms.
    share_encoder_decoder: bool = False
    bottleneck_size: int = 0  # hidden size inside the block (MobileBERT); 0: hidden_size
    num_feed_forwards: int = 1  # feed-forward layers in one block (MobileBERT: 4)

    # --- training
    attention_dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        derived = {
            "num_kv_heads": self.num_heads,
            "head_dim": self.block_size // self.num_heads,
            "local_rope_theta": self.rope_theta,
            "num_decoder_layers": self.num_layers if self.architecture == "encoder-decoder" else 0,
        }
        if not self.head_dim and self.block_size % self.num_heads:
            raise InputError(
                f"A hidden size of {self.block_size} is not a multiple of {self.num_heads} heads; "
                "choose a multiple, or set head_dim."
            )
        for name, value in derived.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"num_heads must be a multiple of num_kv_heads, but {self.num_heads} is not a "
                f"multiple of {self.num_kv_heads}."
            )
        if self.position_embedding == "rotary" and self.head_dim % 2:
            raise InputError(f"Rotary embeddings need an even head_dim, not {self.head_dim}.")
        for name in ("rope_theta", "local_rope_theta"):
            if not 1 < (theta := getattr(self, name)) < math.inf:
                raise InputError(f"{name} must be a number above 1, not {theta}.")
        object.__setattr__(self, "windowed_layers", tuple(self.windowed_layers))
        depth = self.num_layers if self.encoder is None else self.num_decoder_layers
        if any(not 0 <= layer < depth for layer in self.windowed_layers):
            raise InputError(f"windowed_layers must be indices from 0 to {depth - 1}.")
        if self.windowed_layers and self.window < 1:
            raise InputError("windowed_layers need a window of at least 1.")
        if self.trigrams and self.token_embedding_size > self.hidden_size:
            raise InputError(
                f"embedding_size must be at most hidden_size, {self.hidden_size}, not "
                f"{self.embedding_size}."
            )
        if self.encoder is not None:
            self._check_encoder(self.encoder)
        if self.share_encoder_decoder:
            self._check_sharing()

    def _check_encoder(self, encoder: TransformerConfig) -> None:
        """Raise InputError for an encoder and a decoder that do not fit together."""
        if (self.architecture, encoder.architecture) != ("encoder-decoder", "encoder"):
            raise InputError(
                "Only an encoder-decoder has the field encoder, whose architecture is encoder; "
                f"here they are {self.architecture} and {encoder.architecture}."
            )
        if self.num_layers != encoder.num_layers:
            raise InputError(
                f"num_layers must be that of the encoder, {encoder.num_layers}, not "
                f"{self.num_layers}; num_decoder_layers is for the decoder."
            )
        if self.bottleneck_size:
            raise InputError("A decoder with a bottleneck_size cannot attend to an encoder.")

    def _check_sharing(self) -> None:
        """Raise InputError for an encoder and a decoder that cannot share their weights."""
        if self.architecture != "encoder-decoder" or self.encoder is not None:
            raise InputError(
                "share_encoder_decoder needs an encoder-decoder with one config for both sides, "
                f"but the architecture is {self.architecture}"
                f"{'' if self.encoder is None else ' with an encoder of its own config'}."
            )
        if self.num_layers != self.num_decoder_layers:
            raise InputError(
                "share_encoder_decoder needs as many decoder layers as encoder layers, but "
                f"num_layers is {self.num_layers} and num_decoder_layers is "
                f"{self.num_decoder_layers}."
            )
        if self.bottleneck_size:
            raise InputError("share_encoder_decoder does not work with a bottleneck_size.")

    @property
    def input_config(self) -> TransformerConfig:
        """The config of the stack that takes the input: the encoder's own, or this one."""
        return self.encoder or self

    @property
    def block_size(self) -> int:
        """The input size of attention and feed-forward layers."""
        return self.bottleneck_size or self.hidden_size

    @property
    def extends_embeddings(self) -> bool:
        """Whether the output matrix is larger than the token embeddings (MobileBERT)."""
        return self.trigrams and self.tie_embeddings

    @property
    def scale(self) -> float:
        """The factor of the attention scores."""
        return self.attention_scale or float(self.head_dim**-0.5)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible values."""
        encoder = self.encoder.to_dict() if self.encoder is not None else None
        windowed = list(self.windowed_layers)
        return {**super().to_dict(), "windowed_layers": windowed, "encoder": encoder}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from JSON values, also of its encoder and rope scaling."""
        nested = {
            "encoder": cls._encoder(values.get("encoder")),
            "rope_scaling": cls._rope_scaling(values.get("rope_scaling")),
        }
        return super().from_dict({**values, **nested})

    @staticmethod
    def _rope_scaling(values: Any) -> Any:
        """Build the nested config of rope scaling."""
        known = {field.name for field in fields(RopeScaling)}
        if not isinstance(values, dict) or not {"kind", "factor"} <= values.keys() <= known:
            return values
        return RopeScaling(**values)

    @classmethod
    def _encoder(cls, values: Any) -> TransformerConfig | None:
        """Build the nested config of the encoder."""
        if not isinstance(values, dict):
            return values
        if values.get("encoder") is not None:
            raise InputError(
                "The field encoder of a model config cannot have a field encoder itself."
            )
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"In the field encoder of a model config: {error}") from error


def require_transformer_config(config: ModelConfig) -> TransformerConfig:
    """Return the config of a Transformer; raise MismatchError if the network is another one."""
    if isinstance(config, TransformerConfig):
        return config
    raise MismatchError("This needs a Transformer: the model is another kind of network.")
