"""The configuration of any language model, and of any network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Self

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
    "pooling": ("first", "last", "mean", "max", "concat", "attention"),
    "label_activation": ("tanh", *ACTIVATIONS),
    "initialization": ("normal", "truncated", "scaled", "scaled-truncated", "fan-in", "xavier"),
}
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
    def is_bidirectional(self) -> bool:
        """Whether the hidden state of each input token depends on the whole input."""
        return self.has_encoder

    @property
    def predicts_backward(self) -> bool:
        """Whether the model is also a language model from right to left (ELMo)."""
        return False

    @property
    def open_vocabulary(self) -> bool:
        """Whether the model reads or copies unknown words (`tokenizers/open_vocabulary.py`)."""
        return False

    @property
    def has_language_head(self) -> bool:
        """Whether the architecture can have a head that predicts tokens."""
        return True

    @property
    def copies_words(self) -> bool:
        """Whether the model writes unknown words of its source, with ids after the vocabulary."""
        return False

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
            check_type(field.name, value, "int")
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
            check_type(name, value, str(known[name].type))
        needed = [field.name for field in known.values() if field.default is MISSING]
        if missing := [name for name in needed if name not in values]:
            raise InputError(f"The model config lacks {', '.join(missing)}.")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(LanguageModelConfig):
    """What every network's config has: sizes, prediction heads, labels and initialization.

    A network adds its own fields in a subclass, such as `TransformerConfig`.
    """

    derived: ClassVar[tuple[str, ...]] = ()  # fields that follow from others, if they are 0

    # --- size
    hidden_size: int  # of the hidden states that heads read
    num_layers: int  # of the encoder, or of a decoder without an encoder
    num_decoder_layers: int = 0  # of the decoder of an encoder-decoder
    embedding_size: int = 0  # of token embeddings; 0: hidden_size

    # --- heads
    activation: str = "gelu"
    norm: str = "layer"  # layer, rms, rms-plus-one (Gemma) or affine (MobileBERT: no statistics)
    norm_bias: bool = True
    norm_eps: float = 1e-12
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
    pooling: str = "first"  # of a sequence: first, last, mean, max, concat or learned attention
    label_layers: int = 0  # hidden layers of the label head
    label_activation: str = "tanh"  # of those layers
    label_norm: bool = False  # a norm after them (ModernBERT)
    label_bias: bool = True
    label_input_layer: int | None = None  # that the head reads: 0 is the embeddings, None the last
    label_layer_mix: bool = False  # the head reads a learned weighting of all layers (ELMo)
    label_crf: bool = False  # tags of a sentence are scored together: conditional random field

    # --- training
    dropout: float = 0.1
    initialization: str = "normal"
    init_std: float = 0.02  # standard deviation of the initial weights

    # --- files
    family: str = ""  # whose parameter names to save, where several families have this architecture

    def __post_init__(self) -> None:
        if not self.head_activation:
            object.__setattr__(self, "head_activation", self.activation)
        super().__post_init__()
        for field in fields(self):
            if not field.name.endswith("dropout"):
                continue
            if not 0.0 <= (rate := getattr(self, field.name)) <= 1.0:
                raise InputError(f"{field.name} must be between 0 and 1, not {rate}.")
        object.__setattr__(self, "labels", tuple(self.labels))
        if self.tie_embeddings and self.output_embedding_size not in (0, self.token_embedding_size):
            raise InputError(
                f"With tied embeddings, output_embedding_size must be {self.token_embedding_size}, "
                f"the size of the token embeddings, not {self.output_embedding_size}."
            )
        layer = self.label_input_layer
        if self.label_head and layer is not None and not 0 <= layer <= self.num_layers:
            raise InputError(f"label_input_layer must be 0 to {self.num_layers}, not {layer}.")

    @property
    def input_config(self) -> ModelConfig:
        """The config of the part of the network that takes the input."""
        return self

    @property
    def encoder(self) -> ModelConfig | None:
        """The encoder's own config, if it differs from the decoder's."""
        return None

    @property
    def num_segments(self) -> int:
        """The number of segment (token type) embeddings."""
        return 0

    @property
    def norm_position(self) -> str:
        """Whether blocks end with a norm ("post")."""
        return "post"

    @property
    def share_layers(self) -> bool:
        """Whether all layers share one block."""
        return False

    @property
    def num_output_layers(self) -> int:
        """The layers of the stack below the heads: the decoder, if there is one."""
        return self.num_decoder_layers or self.num_layers

    @property
    def token_embedding_size(self) -> int:
        """The size of the token embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def extends_embeddings(self) -> bool:
        """Whether the output matrix is larger than the token embeddings it is tied to."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible values."""
        return {**super().to_dict(), "labels": list(self.labels)}


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "bool | None": (bool, type(None)),
    "int | None": (int, type(None)),
    "tuple[int, ...]": (list, tuple),
    "tuple[str, ...]": (list, tuple),
    "TransformerConfig | None": (dict, ModelConfig, type(None)),
}


def check_type(name: str, value: Any, kind: str) -> None:
    """Raise InputError for a JSON value that does not have the declared type of its field."""
    known = _TYPES.get(kind, (object,))  # nested configs check themselves
    fits = "bool" in kind if isinstance(value, bool) else isinstance(value, known)
    if not fits:
        raise InputError(f"The field {name} of a model config is {kind}, not {value!r:.80}.")
