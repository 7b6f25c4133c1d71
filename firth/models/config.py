"""The configuration of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self

from firth.utils.errors import InputError, suggest

ACTIVATIONS = ("gelu", "gelu-tanh", "relu", "silu")
# The values of the fields that name an option.
CHOICES: dict[str, tuple[str, ...]] = {
    "architecture": ("encoder", "decoder", "encoder-decoder"),
    "position_embedding": ("none", "learned", "sinusoidal", "rotary"),
    "relative_attention": ("none", "bias", "disentangled"),
    "norm": ("layer", "rms", "rms-plus-one", "affine"),
    "norm_position": ("pre", "post", "both"),
    "activation": ACTIVATIONS,
    "head_activation": ACTIVATIONS,
    "head_bias": ("none", "trained", "fixed"),
    "label_head": ("", "classify", "choose", "tag", "span"),
    "label_type": ("one", "many", "number"),
    "pooling": ("first", "last", "mean"),
    "label_activation": ("tanh", *ACTIVATIONS),
    "initialization": ("normal", "truncated", "scaled", "scaled-truncated", "fan-in", "xavier"),
}
ROPE_SCALINGS = ("linear", "llama3", "yarn")
MAX_SIZE, MAX_LAYERS = 2**27, 10_000  # far beyond every published model


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig:
    """What scoring and generation need to know of any language model.

    >>> config = LanguageModelConfig(architecture="decoder", vocab_size=100, max_positions=32)
    >>> LanguageModelConfig.from_dict(config.to_dict()) == config
    True
    """

    architecture: str  # encoder, decoder, or encoder-decoder
    vocab_size: int
    max_positions: int  # the longest sequence
    prefix_lm: bool = False  # a decoder that reads its prompt in both directions

    # --- special tokens, where the family stores them in its config; None: not in the vocabulary
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    extra_eos_token_ids: tuple[int, ...] = ()  # further tokens that end a generated text
    decoder_start_token_id: int | None = None  # the decoder's first input in an encoder-decoder
    forced_bos_token_id: int | None = None  # the first token that an encoder-decoder generates
    forced_eos_token_id: int | None = None  # the last token, if a text reaches its maximum length

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (value := getattr(self, name, known[0])) not in known:
                raise InputError(f"{name} cannot be {value!r}; known are {', '.join(known)}.")
        self.check_sizes(vars(self))
        for name, id in self.special_token_ids.items():
            if not 0 <= id < self.vocab_size:
                object.__setattr__(self, name, None)
        ids = [id for id in self.eos_token_ids if 0 <= id < self.vocab_size]
        object.__setattr__(self, "eos_token_id", ids[0] if ids else None)
        object.__setattr__(self, "extra_eos_token_ids", tuple(ids[1:]))

    @property
    def has_encoder(self) -> bool:
        return self.architecture != "decoder"

    @property
    def has_decoder(self) -> bool:
        return self.architecture != "encoder"

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All tokens that end a generated text."""
        first = () if self.eos_token_id is None else (self.eos_token_id,)
        return (*first, *self.extra_eos_token_ids)

    @property
    def special_token_ids(self) -> dict[str, int]:
        """The ids of the special tokens that the model has, by field."""
        ids = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: id for name, id in ids.items() if name.endswith("_token_id") and id is not None
        }

    def prefix_length(self, prompt_length: int) -> int:
        """The number of prompt tokens that attend in both directions: all or none."""
        return prompt_length if self.prefix_lm and not self.has_encoder else 0

    @classmethod
    def check_sizes(cls, values: Mapping[str, Any]) -> None:
        """Raise InputError for a size among these fields that no model can have."""
        for field in (field for field in fields(cls) if field.type == "int"):
            smallest = int(field.default is MISSING)  # required sizes are positive
            largest = MAX_LAYERS if "layers" in field.name else MAX_SIZE
            value = values.get(field.name, largest)
            _check_type(field.name, value, "int")
            if not smallest <= value <= largest:
                raise InputError(
                    f"{field.name} must be between {smallest} and {largest:,}, not {value}."
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible values."""
        return {**asdict(self), "extra_eos_token_ids": list(self.extra_eos_token_ids)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from JSON values; raise InputError naming unknown or missing fields."""
        known = {field.name: field for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise InputError(f"A model config has no field {name!r}; {suggest(name, known)}")
            _check_type(name, value, str(known[name].type))
        needed = [field.name for field in known.values() if field.default is MISSING]
        if missing := [name for name in needed if name not in values]:
            raise InputError(f"The model config lacks {', '.join(missing)}.")
        return cls(**values)


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
            _check_type(f"rope_scaling.{field.name}", getattr(self, field.name), str(field.type))
        if self.kind not in ROPE_SCALINGS:
            raise InputError(
                f"The rope_type {self.kind!r:.80} is not supported; known are default, "
                f"{', '.join(ROPE_SCALINGS)}."
            )
        positions = 1 if self.kind == "linear" else self.original_positions
        if not (1 <= self.factor < 1e6 and 0 < self.slow < self.fast < 1e6 and positions > 0):
            raise InputError(f"This rope scaling is not possible: {self}.")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(LanguageModelConfig):
    """The architecture and sizes of a network; derived defaults are noted as "0: ...".

    >>> config = ModelConfig(architecture="encoder", vocab_size=100, hidden_size=64, num_layers=2,
    ...                      num_heads=4, ffn_size=256, max_positions=32)
    >>> config.head_dim, config.num_kv_heads
    (16, 4)
    >>> ModelConfig.from_dict(config.to_dict()) == config
    True
    """

    # --- size
    hidden_size: int
    num_layers: int  # of the encoder, or of a decoder without an encoder
    num_decoder_layers: int = 0  # of the decoder of an encoder-decoder; 0: num_layers
    num_heads: int  # attention heads
    num_kv_heads: int = 0  # key-value heads (grouped-query attention); 0: num_heads
    head_dim: int = 0  # 0: hidden_size / num_heads
    ffn_size: int  # hidden size of the feed-forward layer
    encoder: ModelConfig | None = None  # the encoder's config, if it differs from the decoder's

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
    embedding_size: int = 0  # of token embeddings that are projected (ALBERT); 0: hidden_size
    trigrams: bool = False  # project each token embedding with both neighbours (MobileBERT)
    embedding_norm: bool = True  # normalize the sum of the embeddings
    embedding_scale: bool = False  # multiply token embeddings by sqrt(hidden_size)

    # --- block
    norm: str = "layer"  # layer, rms, rms-plus-one (Gemma) or affine (MobileBERT: no statistics)
    norm_position: str = "post"  # post: after the sum; pre: before the sub-layer; both: around it
    norm_bias: bool = True
    norm_eps: float = 1e-12
    first_norm: bool = True  # False: no norm before the first attention layer (ModernBERT)
    activation: str = "gelu"
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

    # --- heads
    tie_embeddings: bool = True  # the output matrix is the token embedding matrix
    head_transform: bool = False  # projection, activation and norm before the output matrix (BERT)
    transform_bias: bool = True
    head_activation: str = ""  # of that projection; "": activation
    output_embedding_size: int = 0  # of an untied output matrix (RemBERT); 0: embedding_size
    head_bias: str = "none"  # bias of the logits
    head_scale: bool = False  # multiply by hidden_size ** -0.5 before the output matrix (T5)

    # --- labels
    label_head: str = ""  # classify or choose (sequences), tag (tokens), span (extractive answers)
    labels: tuple[str, ...] = ()
    label_type: str = "one"  # one label per sequence, many, or a number (regression)
    pooling: str = "first"  # the vector of a sequence: first or last token, or the mean
    label_layers: int = 0  # hidden layers of the label head
    label_activation: str = "tanh"  # of those layers
    label_norm: bool = False  # a norm after them (ModernBERT)
    label_bias: bool = True
    label_input_layer: int | None = None  # that the head reads: 0 is the embeddings, None the last
    label_layer_mix: bool = False  # the head reads a learned weighting of all layers (ELMo)

    # --- training
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initialization: str = "normal"
    init_std: float = 0.02  # standard deviation of the initial weights

    # --- files
    family: str = ""  # whose parameter names to save, where several families have this architecture

    def __post_init__(self) -> None:
        if not self.head_activation:
            object.__setattr__(self, "head_activation", self.activation)
        super().__post_init__()
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= (rate := getattr(self, name)) <= 1.0:
                raise InputError(f"{name} must be between 0 and 1, not {rate}.")
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
        object.__setattr__(self, "labels", tuple(self.labels))
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
        if self.tie_embeddings and self.output_embedding_size not in (0, self.token_embedding_size):
            raise InputError(
                f"With tied embeddings, output_embedding_size must be {self.token_embedding_size}, "
                f"the size of the token embeddings, not {self.output_embedding_size}."
            )
        layer = self.label_input_layer
        if self.label_head and layer is not None and not 0 <= layer <= self.num_layers:
            raise InputError(f"label_input_layer must be 0 to {self.num_layers}, not {layer}.")
        if self.encoder is not None:
            self._check_encoder(self.encoder)
        if self.share_encoder_decoder:
            self._check_sharing()

    def _check_encoder(self, encoder: ModelConfig) -> None:
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
    def input_config(self) -> ModelConfig:
        """The config of the stack that takes the input: the encoder's own, or this one."""
        return self.encoder or self

    @property
    def num_output_layers(self) -> int:
        """The layers of the stack below the heads: the decoder, if there is one."""
        return self.num_decoder_layers or self.num_layers

    @property
    def block_size(self) -> int:
        """The input size of attention and feed-forward layers."""
        return self.bottleneck_size or self.hidden_size

    @property
    def token_embedding_size(self) -> int:
        """The size of the token embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def scale(self) -> float:
        """The factor of the attention scores."""
        return self.attention_scale or float(self.head_dim**-0.5)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible values."""
        lists = {"windowed_layers": list(self.windowed_layers), "labels": list(self.labels)}
        encoder = self.encoder.to_dict() if self.encoder is not None else None
        return {**super().to_dict(), **lists, "encoder": encoder}

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
    def _encoder(cls, values: Any) -> ModelConfig | None:
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


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "bool | None": (bool, type(None)),
    "int | None": (int, type(None)),
    "tuple[int, ...]": (list, tuple),
    "tuple[str, ...]": (list, tuple),
    "ModelConfig | None": (dict, ModelConfig, type(None)),
    "RopeScaling | None": (RopeScaling, type(None)),
}


def _check_type(name: str, value: Any, kind: str) -> None:
    """Raise InputError for a JSON value that does not have the declared type of its field."""
    fits = "bool" in kind if isinstance(value, bool) else isinstance(value, _TYPES[kind])
    if not fits:
        raise InputError(f"The field {name} of a model config is {kind}, not {value!r:.80}.")
