"""Configs of the language models between n-grams and the Transformer.

The networks are in `lstm_lm.py`, `awd_lstm.py` and `bengio.py`; listing presets needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from firth.models.config import ModelConfig
from firth.utils.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """What configs of recurrent language models have: the output matrix reads the last layer."""

    derived: ClassVar[tuple[str, ...]] = ("output_embedding_size",)

    def __post_init__(self) -> None:
        size = 0 if self.tie_embeddings else self.hidden_size
        if self.output_embedding_size not in (0, size):
            raise InputError(f"output_embedding_size must be hidden_size, {self.hidden_size}.")
        object.__setattr__(self, "output_embedding_size", size)
        super().__post_init__()
        if self.tie_embeddings and self.token_embedding_size != self.hidden_size:
            raise InputError(
                f"With tied embeddings, embedding_size must be hidden_size, {self.hidden_size}, "
                f"not {self.embedding_size}: set tie_embeddings to false."
            )


@dataclass(frozen=True, kw_only=True)
class LstmConfig(RecurrentConfig):
    """The sizes of an LSTM language model.

    >>> sizes = dict(vocab_size=10_000, max_positions=4096, hidden_size=650, num_layers=2)
    >>> LstmConfig(architecture="decoder", tie_embeddings=False, **sizes).output_embedding_size
    650
    """

    cell: str = "lstm"  # or gru

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cell not in ("lstm", "gru"):
            raise InputError(f"cell cannot be {self.cell!r}; known are lstm, gru.")


@dataclass(frozen=True, kw_only=True)
class AwdLstmConfig(RecurrentConfig):
    """The sizes and dropout rates of an AWD-LSTM; `dropout` is that of the output and the heads."""

    lstm_size: int  # of the layers below the last
    embedding_dropout: float = 0.1  # of words
    input_dropout: float = 0.4  # of the embeddings
    layer_dropout: float = 0.25  # between layers
    weight_dropout: float = 0.5  # of hidden-to-hidden weights
    activation_penalty: float = 2.0  # alpha: weight of the mean squared activation
    temporal_penalty: float = 1.0  # beta: of the mean squared change between tokens


@dataclass(frozen=True, kw_only=True)
class BengioConfig(ModelConfig):
    """The sizes of the model of Bengio et al. 2003.

    The heads read the hidden units and, with direct connections, the inputs beside them, so that
    the output matrix is U and W side by side:

    >>> sizes = dict(vocab_size=17964, embedding_size=100, order=6, hidden_units=60)
    >>> BengioConfig(architecture="decoder", max_positions=4096, **sizes).hidden_size
    560
    """

    derived: ClassVar[tuple[str, ...]] = ("hidden_size", "output_embedding_size")

    hidden_size: int = 0  # derived: hidden_units, and the inputs with direct connections
    num_layers: int = 1
    tie_embeddings: bool = False  # the output matrix has other inputs than words
    head_bias: str = "trained"
    order: int = 6  # n: a word is predicted from the n - 1 before it
    hidden_units: int = 60  # h
    direct: bool = True  # direct connections W from the inputs to the output

    def __post_init__(self) -> None:
        if self.order < 2:
            raise InputError(f"order must be at least 2, not {self.order}.")
        if self.tie_embeddings or self.num_layers != 1:
            raise InputError("This model has one layer, and its output matrix cannot be tied.")
        size = self.hidden_units + (self.input_size if self.direct else 0)
        for name in self.derived:
            if getattr(self, name) not in (0, size):
                raise InputError(
                    f"{name} is {size}, by hidden_units, embedding_size, order and direct: set "
                    "those instead."
                )
            object.__setattr__(self, name, size)
        super().__post_init__()

    @property
    def input_size(self) -> int:
        """The size of the concatenated embeddings."""
        return (self.order - 1) * self.embedding_size
