"""Configs of recurrent encoder-decoders: `rnn_seq2seq.py` and `pointer_generator.py`."""

from __future__ import annotations

from dataclasses import dataclass

from firth.models.word_model_config import WordModelConfig
from firth.utils.errors import InputError

ATTENTIONS = ("bahdanau", "luong")  # additive, multiplicative; their modules: `alignment.py`


@dataclass(frozen=True, kw_only=True)
class RnnSeq2SeqConfig(WordModelConfig):
    """The config of a recurrent encoder-decoder."""

    architecture: str = "encoder-decoder"
    attention: str = "bahdanau"  # none, bahdanau (additive) or luong (multiplicative)
    input_feeding: bool = False  # luong: the decoder reads its last output, too
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        if self.attention not in ("none", *ATTENTIONS):
            raise InputError(
                f"attention cannot be {self.attention!r}; known are none, {', '.join(ATTENTIONS)}."
            )
        if self.input_feeding and self.attention != "luong":
            raise InputError("input_feeding is for attention luong: set one of them anew.")
        if self.hidden_size % 2:
            raise InputError(
                f"hidden_size must be even, for two directions, and is {self.hidden_size}."
            )
        if self.tie_embeddings and self.token_embedding_size != self.hidden_size:
            raise InputError("tie_embeddings needs an embedding_size equal to hidden_size.")
        if not self.tie_embeddings:  # the output matrix multiplies the decoder's output
            object.__setattr__(self, "output_embedding_size", self.hidden_size)
        super().__post_init__()

    @property
    def has_language_head(self) -> bool:
        return True

    @property
    def open_vocabulary(self) -> bool:
        """Unknown words cannot be written, so they are `<unk>` in the source, too."""
        return False


@dataclass(frozen=True, kw_only=True)
class PointerGeneratorConfig(RnnSeq2SeqConfig):
    """The config of a pointer-generator."""

    coverage: bool = False  # attention depends on earlier attention, and repeating it is penalized
    unk_token_id: int | None = None  # whose embedding all unknown words have
    # Fraction of the vocabulary that a training step reads as unknown, in source and target, so
    # that it learns to copy unknown words (word dropout, Iyyer et al. 2015). Frequent words stay.
    word_dropout: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention != "bahdanau":
            raise InputError("The attention of a pointer-generator is bahdanau: omit attention.")

    @property
    def open_vocabulary(self) -> bool:
        return True

    @property
    def copies_words(self) -> bool:
        return True
