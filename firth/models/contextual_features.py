"""Contextual features: the hidden states of a pre-trained network as input vectors of words.

ELMo's use in other networks (Peters et al. 2018, section 3.2), with any network that has hidden
states. The vector of a word is a learned mix of all layers, or one layer, and the mean over the
word's tokens. The network is frozen or trained with the rest; the mix is trained in both cases.

N  words of the batch     T  tokens of the pre-trained network     W  its hidden size
"""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from firth.models.language_model import LanguageNetwork
from firth.models.layer_mix import LayerMix
from firth.models.masks import Mask
from firth.models.pooling import pool
from firth.models.transformer import max_input_length
from firth.tokenizers.retokenizer import Retokenizer, TokenStream
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.device_transfer import to_device
from firth.utils.errors import UsageError

# The learning rate of a pre-trained network of BERT-base's hidden size, relative to that of a
# network with random weights; larger for smaller networks, as in the recipes of fine-tuning.
LR_SCALE, BASE_HIDDEN_SIZE = 0.03, 768


class ContextualFeatures(nn.Module):
    """Compute a vector for each word of a batch with a pre-trained network.

    >>> from firth.models.presets import preset
    >>> from firth.models.transformer import Transformer
    >>> from firth.tokenizers.word_vocabulary import word_tokenizer
    >>> words = word_tokenizer(["a", "bat"], lowercase=True, split=True)
    >>> features = ContextualFeatures(Transformer(preset("bert-tiny").config), frozen=True)
    >>> features.set_tokenizers(words, words)
    >>> features(torch.tensor(words.encode("a bat")), Mask([2])).shape
    torch.Size([2, 128])
    """

    def __init__(self, network: LanguageNetwork, *, frozen: bool, layer: int | None = None) -> None:
        super().__init__()
        self.network, self.frozen, self.layer = network, frozen, layer
        self.size, last = network.config.input_config.hidden_size, network.config.num_layers
        if layer is not None and not (network.has_layers and -last - 1 <= layer <= last):
            able = f"0 (embeddings) to {last}" if network.has_layers else "only the last"
            raise UsageError(f"feature_layer={layer} is not possible: the layers are {able}.")
        mixes = layer is None and network.has_layers
        self.mix = LayerMix(network.config) if mixes else None
        self.retokenizer: Retokenizer | None = None
        for module in network.modules():
            scale = LR_SCALE * max(1.0, (BASE_HIDDEN_SIZE / self.size) ** 2)
            module.lr_scale = min(1.0, scale)  # type: ignore[assignment]

    def set_tokenizers(self, own: Tokenizer, other: Tokenizer) -> None:
        """Set the tokenizer of the batch's words, and that of the pre-trained network."""
        self.retokenizer = Retokenizer(
            own,
            other,
            max_length=max_input_length(self.network),
            open_vocabulary=self.network.config.open_vocabulary,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the pre-trained network."""
        assert self.retokenizer is not None
        return self.retokenizer.tokenizer

    def train(self, mode: bool = True) -> Self:
        """Set the mode; a frozen network has no dropout."""
        super().train(mode)
        if self.frozen:
            self.network.eval()
        return self

    def forward(self, ids: Tensor, mask: Mask) -> Tensor:
        """Compute the vectors of words, zeros for special tokens: (N,) -> (N, W)."""
        assert self.retokenizer is not None
        stream = self.retokenizer(ids.tolist(), mask.lengths.tolist())
        vectors = torch.zeros(len(ids), self.size, device=ids.device)
        owned = np.flatnonzero(stream.words >= 0)
        if not len(owned):
            return vectors
        words, starts = np.unique(stream.words[owned], return_index=True)
        bounds = to_device(np.append(starts, len(owned)), ids.device)
        hidden = self._hidden(stream, ids.device)[to_device(owned, ids.device)]
        means = pool(hidden.float(), bounds, "mean")
        return vectors.index_copy(0, to_device(words, ids.device), means)

    def _hidden(self, stream: TokenStream, device: torch.device) -> Tensor:
        """Compute the hidden states of tokens, of one layer or a mix of all."""  # (T, W)
        layers: list[Tensor] = []
        kind = Mask if self.network.config.has_encoder else Mask.causal
        mask = kind(stream.lengths, device=device)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            last = self.network.encode(to_device(stream.tokens, device), mask, layers=layers)
        if self.mix is not None:
            return self.mix(layers)
        return last if self.layer is None else layers[self.layer]
