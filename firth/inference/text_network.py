"""`TextNetwork`: a network with its tokenizer, and the values it computes of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firth.data.input_files import as_texts
from firth.data.memory import Data
from firth.formats.sentence_transformers import SentenceEncoderConfig
from firth.inference.attention_maps import attention_arrays
from firth.inference.explanation import require_transformer
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import greedy_decode
from firth.inference.padded_forward import padded_logits
from firth.inference.scoring.log_likelihood import check_length
from firth.inference.scoring.token_scoring import check_language_head
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.transformer import Transformer, count_parameters, max_input_length
from firth.quantization.int8 import count_int8_weights
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.arguments import check_arguments
from firth.utils.devices import DTYPES, Dtype, find_dtype, restored_torch_state, select_device
from firth.utils.errors import MismatchError, UsageError
from firth.utils.notebook import HtmlRepr
from firth.utils.surrogates import without_surrogates

ENCODER_FOLDER = "reader"  # with the tokenizer of an encoder that has its own


@dataclass(repr=False, eq=False)
class TextNetwork(HtmlRepr):
    """A network and its tokenizer."""

    network: LanguageNetwork
    tokenizer: Tokenizer | None
    path: Path | None = None
    source: str | None = None  # the argument of `load`: a path or a name
    sentence_encoder: SentenceEncoderConfig | None = None  # pooling and prompts for embeddings
    encoder_tokenizer: Tokenizer | None = None  # of an encoder with a vocabulary of its own
    objective: str | None = None  # of its pre-training, if run.json names it
    generation_config: dict[str, Any] = field(default_factory=dict)  # generation_config.json

    @property
    def config(self) -> ModelConfig:
        """Return the config of the network."""
        return self.network.config

    @property
    def transformer(self) -> Transformer:
        """Return the network; raise an error if it is no Transformer, which some functions need."""
        return require_transformer(self.network)

    @property
    def num_parameters(self) -> int:
        """Return the number of parameters, quantized ones included."""
        return count_parameters(self.network) + count_int8_weights(self.network)

    @restored_torch_state()
    def to(
        self,
        device: str | torch.device | torch.dtype | None = None,
        dtype: Dtype = None,
    ) -> Self:
        """Move the network to a device, or convert its weights to a dtype; return the model."""
        if isinstance(device, torch.dtype) or (isinstance(device, str) and device in DTYPES):
            device, dtype = None, device
        target = None if device is None else select_device(str(device))
        dtype = find_dtype(dtype)
        if count_int8_weights(self.network) and (dtype or (target and target.type != "cpu")):
            raise UsageError("Int8 weights stay on the CPU: load the model without weights='int8'.")
        self.network.to(device=target, dtype=dtype)
        return self

    @check_arguments
    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text as the network reads it, with the special tokens around it.

        They are the rows of `logits` and `hidden_states`. `model.tokenizer.pieces(text)` has no
        special tokens.
        """
        return self.input_tokenizer().encoding(without_surrogates(text), specials=True).tokens

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits at each position: ids [batch, length] -> [batch, length, vocab].

        The attention mask is 1 for tokens and 0 for padding, on either side of a row: padding has
        no position, is not attended to, and its logits are 0. Decoders predict the next token,
        encoders the (masked) token itself. An encoder-decoder returns the logits of the decoder,
        whose inputs are `decoder_input_ids`; by default the input ids shifted right by one, as in
        BART. The network computes gradients, and applies dropout in training mode
        (`model.network.train()`).
        """
        return padded_logits(
            self.network,
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
        )

    @overload
    def logits(self, text: str) -> Tensor: ...  # type: ignore[overload-overlap]

    @overload
    def logits(self, text: Data) -> list[Tensor]: ...

    @torch.no_grad()
    def logits(self, text: Data) -> Tensor | list[Tensor]:
        """Compute the logits of a text: tokens × vocabulary, a row for each of `tokens(text)`.

        A row of a decoder predicts the next token, of an encoder the token itself. The decoder of
        an encoder-decoder predicts the text, token by token, from the text itself and the tokens
        before; use `forward` for other outputs. Several texts give a list.
        """
        if not isinstance(text, str):
            return [self.logits(one) for one in as_texts(text, "text")]
        ids = self.input_ids(text)
        target = None
        if self.encoder_tokenizer is not None:  # here rows are the decoder's tokens
            start = self.config.decoder_start_token_id or 0
            following = self.require_tokenizer().encode(without_surrogates(text))
            target = torch.tensor([[start, *following][:-1]])
        return self.forward(ids[None], decoder_input_ids=target)[0]

    @overload
    def hidden_states(self, text: str) -> Tensor: ...  # type: ignore[overload-overlap]

    @overload
    def hidden_states(self, text: Data) -> list[Tensor]: ...

    @torch.no_grad()
    def hidden_states(self, text: Data) -> Tensor | list[Tensor]:
        """Compute the hidden states of a text: layers + 1 × tokens × hidden size.

        The first are the embeddings, the last the network's output. Those of an encoder-decoder are
        the encoder's: the decoder has its own tokens. Several texts give a list.
        """
        if not isinstance(text, str):
            return [self.hidden_states(one) for one in as_texts(text, "text")]
        ids, layers = self.input_ids(text), list[Tensor]()
        mask = (Mask if self.config.has_encoder else Mask.causal)([len(ids)], device=ids.device)
        last = self.network.encode(ids, mask, layers=layers)
        return torch.stack(layers or [last])

    @check_arguments
    def attention(
        self,
        text: str,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        target: str | None = None,
    ) -> NDArray[np.float32] | dict[str, NDArray[np.float32]]:
        """Compute the attention weights of a text: layers × heads × queries × keys.

        Layers and heads are counted from 1, or from the end: -1 is the last. The rows of an array
        are counted from 0 as ever: with all layers, `model.attention(text)[7, 9]` is head 8-10.
        Queries and keys are those of `tokens(text)`; trained prefixes and prompts are further keys
        before them. An encoder-decoder has a dict of `encoder`, `decoder` and `cross`, whose
        decoder reads `target`, by default its own greedy output.
        """
        if not text.strip():
            raise UsageError("The text is empty, so there is no attention to show: add a word.")
        ids = self.input_ids(text)
        both = self.config.architecture == "encoder-decoder"
        target_ids = self.decoder_ids(ids.tolist(), target) if both or target is not None else []
        arrays = attention_arrays(self.network, ids, target_ids, layers=layers, heads=heads)
        return arrays if both else arrays[self.config.architecture]

    def decoder_ids(self, source: Sequence[int], target: str | None = None) -> list[int]:
        """Return the decoder's input for an output text: the start token and the text's tokens.

        `source` are the encoder's token ids; without a target the output is generated (greedily).
        """
        start = self.config.decoder_start_token_id or 0
        if target is not None:
            return [start, *self.require_tokenizer().encode(without_surrogates(target))]
        check_language_head(self.network)
        [tokens] = greedy_decode(
            self.network,
            [source],
            max_new_tokens=GenerationConfig().max_new_tokens,
            eos_token_id=self.config.eos_token_ids,
        )
        return [start, *tokens]

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raise an error if there is none."""
        if self.tokenizer is None:
            raise MismatchError(
                f"{self.source or self.path} has no tokenizer, which text input needs."
            )
        return self.tokenizer

    def require_encoder_tokenizer(self) -> Tokenizer | None:
        """Return the encoder's own tokenizer; None if encoder and decoder share one."""
        if self.config.encoder is not None and self.encoder_tokenizer is None:
            raise MismatchError(
                f"{self.source or self.path} lacks the tokenizer of its encoder, in the folder "
                f"{ENCODER_FOLDER}."
            )
        return self.encoder_tokenizer

    def input_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the network's input: of the encoder, if it has its own."""
        return self.require_encoder_tokenizer() or self.require_tokenizer()

    def input_ids(self, text: str) -> Tensor:
        """Return the token ids of a text, with special tokens."""
        tokenizer = self.input_tokenizer()
        encode = tokenizer.open_encode if self.config.open_vocabulary else tokenizer.encode
        ids = encode(without_surrogates(text), specials=True)
        check_length(len(ids), max_input_length(self.network))
        return torch.tensor(ids, dtype=torch.long, device=self.network.device)

    def __repr__(self) -> str:
        size, name = f"{self.num_parameters:,} parameters", type(self).__name__
        parts = [str(self.source or self.path or "unsaved"), self.config.architecture, size]
        dtype = str(self.network.dtype).removeprefix("torch.")
        dtype = "int8" if count_int8_weights(self.network) else dtype
        return f"{name}({', '.join([*parts, f'{dtype} on {self.network.device}'])})"
