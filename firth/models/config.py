"""What a network is made of: data, from which `transformer.py` builds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from firth.errors import InputError, meant

ACTIVATIONS = ("gelu", "gelu-tanh", "relu", "silu")
# The values a field of words may have.
CHOICES: dict[str, tuple[str, ...]] = {
    "architecture": ("encoder", "decoder", "encoder-decoder"),
    "positions": ("none", "learned", "sinusoidal", "rotary"),
    "relative": ("none", "bias", "disentangled"),
    "norm": ("layer", "rms", "rms-plus-one", "affine"),
    "norm_place": ("pre", "post", "both"),
    "activation": ACTIVATIONS,
    "head_activation": ACTIVATIONS,
    "head_bias": ("none", "trained", "fixed"),
    "label_head": ("", "classify", "choose", "tag", "span"),
    "labelling": ("one", "many", "number"),
    "pooling": ("first", "last", "mean"),
    "label_activation": ("tanh", *ACTIVATIONS),
    "initialisation": ("normal", "truncated", "scaled", "scaled-truncated", "fan-in", "xavier"),
}


NEEDED = ("architecture", "vocabulary", "width", "layers", "heads", "inner", "context")
MOST, MOST_LAYERS = 2**27, 10_000  # far beyond every network there is


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a network. Zero means "as usual" wherever a line says so.

    >>> config = ModelConfig(architecture="encoder", vocabulary=100, width=64, layers=2, heads=4,
    ...                      inner=256, context=32)
    >>> config.head_width, config.kv_heads
    (16, 4)
    >>> ModelConfig.from_dict(config.to_dict()) == config
    True
    """

    # --- size
    architecture: str  # encoder, decoder, or encoder-decoder
    vocabulary: int  # how many tokens there are
    width: int  # of the vector each token carries
    layers: int  # of the encoder, or of a lone decoder
    decoder_layers: int = 0  # of the decoder behind an encoder; 0: as many
    heads: int  # of attention
    kv_heads: int = 0  # that have keys and values of their own (grouped queries); 0: all
    head_width: int = 0  # of one head; 0: width / heads
    inner: int  # width inside the feed-forward layer
    context: int  # the longest sequence
    reader: ModelConfig | None = None  # the encoder's shape, where it is not the decoder's

    # --- embedding
    positions: str = "learned"  # what is added to, or turned by, the place of a token
    position_offset: int = 0  # learned positions begin at this row (RoBERTa, BART: 2)
    theta: float = 10_000.0  # base of the rotary angles
    local_theta: float = 0.0  # the same in layers with a window; 0: theta
    relative: str = "none"  # bias: T5's; disentangled: DeBERTa's
    buckets: int = 32  # of relative distances
    distance: int = 128  # from which on they share the last bucket
    segments: int = 0  # kinds of segment (BERT: 2)
    embedding_width: int = 0  # narrower tables, then a projection (ALBERT); 0: width
    trigrams: bool = False  # that projection sees both neighbours too (MobileBERT)
    embedding_norm: bool = True  # normalise the sum of the embeddings
    embedding_scale: bool = False  # multiply token embeddings by sqrt(width)

    # --- block
    norm: str = "layer"  # layer, rms, rms-plus-one (Gemma) or affine (MobileBERT: no statistics)
    norm_place: str = "post"  # after the sum, before the sub-layer, or around it
    norm_bias: bool = True
    norm_eps: float = 1e-12
    first_norm: bool = True  # False: the first block trusts the embedding's norm (ModernBERT)
    activation: str = "gelu"
    gated: bool = False  # two projections up, one of them through the activation
    bias: bool = True  # of every projection in the block
    qkv_bias: bool | None = None  # of query, key and value; None: like the others
    qk_norm: bool = False  # normalise queries and keys (Qwen 3)
    attention_scale: float = 0.0  # of the scores; 0: 1 / sqrt(head_width)
    window: int = 0  # tokens seen on each side in the windowed layers
    windowed: tuple[int, ...] = ()  # the layers that see only the window
    shared: bool = False  # one block, used again in every layer (ALBERT)
    bottleneck: int = 0  # width inside the block (MobileBERT); 0: width
    feed_forwards: int = 1  # how many of them in one block (MobileBERT: 4)

    # --- heads
    tied: bool = True  # the output matrix is the table of token embeddings
    head_transform: bool = False  # projection, activation and norm before it (BERT)
    transform_bias: bool = True
    head_activation: str = ""  # of that projection; "": the block's
    output_width: int = 0  # of an untied output matrix (RemBERT); 0: that of the table
    head_bias: str = "none"  # one number for each token, trained or fixed
    head_scale: bool = False  # multiply by width ** -0.5 before the output matrix (T5)

    # --- labels
    label_head: str = ""  # classify or choose (a sequence), tag (tokens), span (an answer)
    labels: tuple[str, ...] = ()
    labelling: str = "one"  # a sequence has one of the labels, many, or a number instead
    pooling: str = "first"  # whose vector stands for a sequence: first or last token, or the mean
    label_layers: int = 0  # layers before the scores of the labels
    label_activation: str = "tanh"  # of those layers
    label_norm: bool = False  # a norm behind them (ModernBERT)
    label_bias: bool = True

    # --- training
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initialisation: str = "normal"
    spread: float = 0.02  # standard deviation of the first weights

    # --- tokens with a role, where the family keeps them in its configuration
    padding_id: int | None = None
    begin_id: int | None = None
    end_id: int | None = None
    start_id: int | None = None  # the first token a decoder behind an encoder is given

    # --- files
    family: str = ""  # whose names to write, where several families have this shape

    def __post_init__(self) -> None:
        if not self.head_activation:
            object.__setattr__(self, "head_activation", self.activation)
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise InputError(f"{name} cannot be {value!r}; known are {', '.join(known)}.")
        self._check_sizes()
        derived = {
            "kv_heads": self.heads,
            "head_width": self.block_width // self.heads,
            "local_theta": self.theta,
            "decoder_layers": self.layers if self.architecture == "encoder-decoder" else 0,
        }
        if not self.head_width and self.block_width % self.heads:
            raise InputError(
                f"A width of {self.block_width} cannot be divided among {self.heads} heads; "
                "choose a multiple, or give head_width."
            )
        for name, value in derived.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} heads cannot share {self.kv_heads} key-value heads.")
        if self.positions == "rotary" and self.head_width % 2:
            raise InputError(f"Rotary positions need an even head_width, not {self.head_width}.")
        object.__setattr__(self, "windowed", tuple(self.windowed))
        object.__setattr__(self, "labels", tuple(self.labels))
        depth = self.layers if self.reader is None else self.decoder_layers
        if any(not 0 <= layer < depth for layer in self.windowed):
            raise InputError(f"windowed names layers outside 0 to {depth - 1}.")
        if self.windowed and self.window < 1:
            raise InputError("The layers in windowed need a window of at least 1.")
        if self.tied and self.output_width not in (0, self.table_width):
            raise InputError(
                f"A tied output matrix is as wide as the table, {self.table_width}, "
                f"and cannot have an output_width of {self.output_width}."
            )
        if self.reader is not None:
            self._check_reader(self.reader)

    def _check_sizes(self) -> None:
        """Refuse what no network can have, before anything is built of it."""
        for name in (field.name for field in fields(self) if field.type == "int"):
            least, most = int(name in NEEDED), MOST_LAYERS if "layers" in name else MOST
            if not least <= (value := getattr(self, name)) <= most:
                raise InputError(f"{name} must be between {least} and {most:,}, not {value}.")
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= (value := getattr(self, name)) <= 1.0:
                raise InputError(f"{name} is a probability, which {value} is not.")

    def _check_reader(self, reader: ModelConfig) -> None:
        """Refuse two shapes that cannot stand one behind the other."""
        if (self.architecture, reader.architecture) != ("encoder-decoder", "encoder"):
            raise InputError(
                f"Only an encoder-decoder has a reader, which is an encoder; this "
                f"{self.architecture} cannot have one that is a {reader.architecture}."
            )
        if self.layers != reader.layers:
            raise InputError(
                f"layers counts those of the encoder: {self.layers} cannot be right where the "
                f"reader has {reader.layers}."
            )
        if self.bottleneck:
            raise InputError("A decoder with bottlenecks has no place to look at an encoder from.")

    @property
    def reading(self) -> ModelConfig:
        """The shape of what reads: the encoder's, where it has its own."""
        return self.reader or self

    @property
    def block_width(self) -> int:
        """The width attention and feed-forward layers work at."""
        return self.bottleneck or self.width

    @property
    def table_width(self) -> int:
        """The width of the table of token embeddings."""
        return self.embedding_width or self.width

    @property
    def scale(self) -> float:
        """What attention scores are multiplied by."""
        return self.attention_scale or float(self.head_width**-0.5)

    @property
    def has_encoder(self) -> bool:
        return self.architecture != "decoder"

    @property
    def has_decoder(self) -> bool:
        return self.architecture != "encoder"

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON knows it."""
        lists = {"windowed": list(self.windowed), "labels": list(self.labels)}
        reader = self.reader.to_dict() if self.reader is not None else None
        return {**asdict(self), **lists, "reader": reader}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """A configuration from what JSON gave; unknown or missing fields are named."""
        known = {field.name: field for field in fields(cls)}
        for name in values:
            if name not in known:
                raise InputError(f"A model has no field {name!r}; {meant(name, known)}")
        for name, value in values.items():
            if not _fits(value, str(known[name].type)):
                kind = str(known[name].type)
                raise InputError(f"The field {name} of a model is {kind}, not {value!r}.")
        if missing := [name for name in NEEDED if name not in values]:
            raise InputError(f"The configuration lacks {', '.join(missing)}.")
        return cls(**{**values, "reader": cls._reader(values.get("reader"))})

    @classmethod
    def _reader(cls, values: Any) -> ModelConfig | None:
        """The encoder's own shape, which has no other in it."""
        if not isinstance(values, dict):
            return values
        if values.get("reader") is not None:
            raise InputError("The reader of a model cannot have a reader itself.")
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"In the reader of a model: {error}") from error


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "bool | None": (bool, type(None)),
    "int | None": (int, type(None)),
    "tuple[int, ...]": (list, tuple),
    "tuple[str, ...]": (list, tuple),
    "ModelConfig | None": (dict, ModelConfig, type(None)),
}


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value out of JSON is what the field is declared to be."""
    if isinstance(value, bool):
        return "bool" in annotation
    return isinstance(value, _KINDS[annotation])
