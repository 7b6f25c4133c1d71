"""Word vectors from characters: a CNN, highway layers, a projection (Kim et al. 2016).

As in ELMo (Peters et al. 2018), with UTF-8 bytes as characters. The vector of a word is computed
once for all its occurrences in a batch.

N  tokens of the batch     U  distinct words among them     C  characters of a word
E  character embedding     F  filters of all widths         W  size of a word vector
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from firth.tokenizers.characters import (
    MAX_CHARACTERS,
    NUM_CHARACTERS,
    PADDING,
    stack_characters,
    vocabulary_characters,
)
from firth.tokenizers.open_vocabulary import extended_ids
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.device_transfer import to_device

Filters = Sequence[tuple[int, int]]  # width in characters, number of filters


class Highway(nn.Module):
    """Let a gate choose between a transformed input and the input (Srivastava et al. 2015)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x  # (U, F)


class CharacterCNN(nn.Module):
    """Compute a vector for each word from its characters; without `output_size`, of size F.

    >>> network = CharacterCNN(4, [(1, 8), (3, 8)], highway_layers=1, output_size=6)
    >>> words = torch.tensor(stack_characters(["bat", "a"]))
    >>> network(words).shape, network(words[:1]).shape
    (torch.Size([2, 6]), torch.Size([1, 6]))
    """

    def __init__(
        self, embedding_size: int, filters: Filters, *, highway_layers: int, output_size: int = 0
    ) -> None:
        super().__init__()
        size = sum(count for _, count in filters)
        self.embeddings = nn.Embedding(NUM_CHARACTERS, embedding_size)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(embedding_size, count, width) for width, count in filters
        )
        self.highways = nn.Sequential(*(Highway(size) for _ in range(highway_layers)))
        self.projection = nn.Linear(size, output_size) if output_size else None
        self.output_size = output_size or size
        self.widths = [width for width, _ in filters]

    def forward(self, characters: Tensor) -> Tensor:
        """Compute word vectors: (U, C) -> (U, W)."""
        lengths = (characters != PADDING).sum(1)  # (U,)
        longest = max(*self.widths, int(lengths.max()) if len(lengths) else 0)
        characters = pad(characters[:, :longest], (0, max(0, longest - characters.shape[1])))
        known = (characters != PADDING)[..., None]
        x = self.embeddings(characters.long()) * known  # (U, C, E), zeros after a word
        maxima = [
            _max_over_time(layer(x.mT), lengths, width)
            for width, layer in zip(self.widths, self.convolutions, strict=True)
        ]
        features = self.highways(torch.relu(torch.cat(maxima, dim=1)))  # (U, F)
        return features if self.projection is None else self.projection(features)


def _max_over_time(windows: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Take the maximum over the windows inside a word; a word shorter than a window has one.

    So a word's vector does not depend on the longest word of the batch.
    """  # (U, F, windows) -> (U, F)
    begins = torch.arange(windows.shape[2], device=windows.device)
    inside = (begins == 0) | (begins + width <= lengths[:, None])  # (U, windows)
    return windows.masked_fill(~inside[:, None], float("-inf")).amax(2)


class WordCharacters(nn.Module):
    """The characters of the words of a vocabulary, and of the open words of each batch."""

    def __init__(self, vocab_size: int, max_characters: int = MAX_CHARACTERS) -> None:
        super().__init__()
        self.table: Tensor  # (V, C)
        empty = torch.zeros(vocab_size, max_characters, dtype=torch.int16)
        self.register_buffer("table", empty)

    def read_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Store the characters of each token of a tokenizer."""
        rows = vocabulary_characters(tokenizer, self.table.shape[1])
        self.table[: len(rows)] = to_device(rows, self.table.device)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the characters of the distinct words of a batch, and the word of each token."""
        size = len(self.table)
        numbered, open_words = extended_ids(ids.cpu().numpy(), size)  # (N,)
        distinct, inverse = to_device(numbered, ids.device).unique(return_inverse=True)
        characters = self.table[distinct[: len(distinct) - len(open_words)]]
        if open_words:  # their numbers are the last
            rows = stack_characters(open_words, self.table.shape[1])
            characters = torch.cat([characters, to_device(rows, ids.device)])
        return characters, inverse  # (U, C), (N,)


class CharacterVectors(nn.Module):
    """Compute the vectors of words, in the vocabulary or not, from their characters.

    >>> vectors = CharacterVectors(10, CharacterCNN(4, [(3, 8)], highway_layers=0))
    >>> vectors(torch.tensor([5, 6, 5])).shape
    torch.Size([3, 8])
    """

    def __init__(
        self, vocab_size: int, cnn: CharacterCNN, max_characters: int = MAX_CHARACTERS
    ) -> None:
        super().__init__()
        self.characters, self.cnn = WordCharacters(vocab_size, max_characters), cnn

    def forward(self, ids: Tensor) -> Tensor:
        characters, words = self.characters(ids)  # (U, C), (N,)
        return self.cnn(characters)[words]  # (N, W)
