"""Hidden states of many texts at every layer: the mean vector of groups of their tokens.

A group is a word, or all tokens of a text. Only the means are kept.

N  tokens of a batch     G  groups of tokens     W  hidden size
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from firth.inference.batching import batch_by_length
from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.vectors import truncate
from firth.inference.text_model import TextModel
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.utils.device_transfer import to_device
from firth.utils.errors import FirthError
from firth.utils.surrogates import without_surrogates

BATCH_TOKENS = 2048  # bounds the memory: the hidden states of all layers of a batch
Span = tuple[int, int]  # first and last + 1 character
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class SpannedTokens:
    """The tokens of a text with their characters, cut to the maximum length of the model."""

    text: str
    ids: list[int]
    spans: list[Span]
    is_text: list[bool]  # False: a special token, or the first token of a decoder
    cut: bool

    @property
    def tokens(self) -> list[int]:
        """The positions of the tokens of the text, all if there are no others."""
        return [i for i, own in enumerate(self.is_text) if own] or list(range(len(self.ids)))

    def tokens_of(self, span: Span) -> list[int]:
        """Return the positions of the tokens that share characters with a span."""
        first, last = span
        return [i for i, (start, end) in enumerate(self.spans) if start < last and first < end]


def layer_embedder(model: TextModel) -> Embedder:
    """Return the embedder of a model for its hidden states: in full precision, without a prompt."""
    return replace(model.embedder(), prompt="", skip=0, use_bf16=False)


def encode_text(embedder: Embedder, text: str) -> SpannedTokens:
    """Tokenize a text with the special tokens of the model.

    The first token of a decoder attends to itself only, and its hidden states are outliers
    ("massive activations", Sun et al. 2024), so means leave it out like a special token.
    """
    text = without_surrogates(text)
    encoding = embedder.tokenizer.encoding(text, specials=True)
    ids = encoding.ids
    if embedder.network.config.open_vocabulary:
        ids = embedder.tokenizer.open_ids(encoding, text)
    special, kept = encoding.special_tokens_mask, list(range(len(ids)))
    if cut := len(kept) > embedder.max_length:
        from_left = embedder.tokenizer.config.get("truncation_side") == "left"
        kept = truncate(kept, special, embedder.max_length, from_left)
    first = 0 if embedder.network.config.is_bidirectional else 1
    return SpannedTokens(
        text,
        [ids[i] for i in kept],
        [(0, 0) if special[i] else encoding.offsets[i] for i in kept],
        [place >= first and not special[i] for place, i in enumerate(kept)],
        cut,
    )


@torch.no_grad()
def layer_means(
    embedder: Embedder,
    ids: Sequence[Sequence[int]],
    groups: Sequence[Sequence[Sequence[int]]],
    layer: int | None = None,
) -> Vectors:
    """Compute the mean vector of groups of tokens at each layer, or at one.

    `ids` are the tokens of each text and `groups` the positions of the tokens of each group, by
    text. Layer 0 is the output of the embedding layer, the last one that of the network.
    """  # (layers + 1 or 1, G, W)
    counts = [len(one) for one in groups]
    starts = np.cumsum([0, *counts])
    found: Vectors | None = None
    with embedder.inference_mode():
        for rows in batch_by_length([(len(one),) for one in ids], BATCH_TOKENS, padded=True):
            layers = _hidden_states(embedder, [ids[row] for row in rows])
            layers = layers if layer is None else [layers[layer]]
            means = _group_means(layers, [len(ids[row]) for row in rows], [groups[r] for r in rows])
            if found is None:
                found = np.zeros((len(layers), starts[-1], means.shape[2]), dtype=np.float32)
            own = [np.arange(starts[row], starts[row + 1]) for row in rows]
            found[:, np.concatenate(own)] = means
    assert found is not None
    if not np.isfinite(found).all():
        raise FirthError(
            "A hidden state is not finite: the network overflows, or its weights are NaN; try "
            "float32."
        )
    return found


def _hidden_states(embedder: Embedder, ids: Sequence[Sequence[int]]) -> list[Tensor]:
    """Compute the hidden states of a packed batch at every layer."""  # (N, W) each
    network, lengths = embedder.network, [len(row) for row in ids]
    flat = np.fromiter(chain.from_iterable(ids), np.int64, count=sum(lengths))
    make_mask = Mask if network.config.has_encoder else Mask.causal
    layers = list[Tensor]()
    tokens = to_device(flat, embedder.device)
    last = network.encode(tokens, make_mask(lengths, device=embedder.device), layers=layers)
    return layers or [last[: len(tokens)]]


def _group_means(
    layers: Sequence[Tensor],
    lengths: Sequence[int],
    groups: Sequence[Sequence[Sequence[int]]],
) -> Vectors:
    """Compute the means of groups of tokens of a packed batch."""  # (layers, G, W)
    starts = np.cumsum([0, *lengths])
    members = [
        start + np.array(one) for start, of in zip(starts, groups, strict=False) for one in of
    ]
    sizes = np.array([len(one) for one in members])
    device = layers[0].device
    tokens = to_device(np.concatenate([np.zeros(0, dtype=np.int64), *members]), device)
    owners = to_device(np.repeat(np.arange(len(members)), sizes), device)
    divisors = to_device(sizes.astype(np.float32), device)[:, None]
    means = []
    for layer in layers:
        sums = torch.zeros(len(members), layer.shape[1], device=device)
        means.append(sums.index_add(0, owners, layer[tokens].float()) / divisors)
    return torch.stack(means).cpu().numpy()


@torch.no_grad()
def static_vectors(embedder: Embedder, ids: Sequence[Sequence[int]]) -> Vectors:
    """Compute the mean row of the embedding matrix for each group of token ids."""  # (G, E)
    embed = input_embeddings(embedder)
    found = [embed(torch.tensor(one, device=embedder.device)).float().mean(0) for one in ids]
    return torch.stack(found).cpu().numpy()


def input_embeddings(embedder: Embedder) -> nn.Module:
    """Return the token embeddings of a network's input."""
    network = embedder.network
    if isinstance(network, Transformer):
        return network.token_embeddings(network.stacks[0])
    assert isinstance(network, LanguageNetwork)
    return network.input_embeddings
