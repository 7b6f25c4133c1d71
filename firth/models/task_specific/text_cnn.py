"""A convolutional network for sentences (Kim 2014).

A filter of width k reads the embeddings of k neighbouring words; the largest value of each filter
over all positions of a text (max over time) is a feature of the classifier. In a packed batch,
filters are matrices on windows of k rows; rows of the next text are replaced by zeros.

N  tokens of the batch     E  size of a word's vector     W  hidden size: the filters of all widths
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from firth.models.heads import make_head
from firth.models.masks import Mask
from firth.models.task_specific.text_configs import TextCnnConfig
from firth.models.word_embedding import WordEmbedding, WordNetwork


class TextCnn(WordNetwork):
    """Convolutions over the embeddings of words; the head reads the maximum over all positions.

    >>> config = TextCnnConfig(
    ...     architecture="encoder", vocab_size=9, max_positions=32, hidden_size=6, num_layers=1,
    ...     embedding_size=4, pooling="max",
    ... )
    >>> network = TextCnn(config)
    >>> hidden = network(torch.tensor([1, 2, 3, 4, 5]), Mask([3, 2]))
    >>> hidden.shape, network.pool(hidden, torch.tensor([0, 3, 5])).shape
    (torch.Size([5, 6]), torch.Size([2, 6]))
    """

    config: TextCnnConfig

    def __init__(self, config: TextCnnConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.tokens = WordEmbedding(config)
        size, filters = config.word_vector_size, config.hidden_size // len(config.filter_widths)
        self.filters = nn.ModuleList(
            nn.Linear(width * size, filters) for width in config.filter_widths
        )
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Compute the filters of the words that begin at each token; zeros follow a text."""
        words = self.word_vectors(tokens, mask)  # (N, E)
        widest = max(self.config.filter_widths)
        after = pad(words, (0, 0, 0, widest - 1))  # (N + widest - 1, E)
        left = mask.lengths_tensor[mask.sequence_ids] - mask.positions  # (N,) tokens up to the end
        windows = [after[i : i + len(words)] * (left > i)[:, None] for i in range(widest)]
        window, size = torch.cat(windows, dim=1), words.shape[1]  # (N, widest * E)
        layers = zip(self.filters, self.config.filter_widths, strict=True)
        found = [layer(window[:, : width * size]) for layer, width in layers]
        return torch.cat(found, dim=1).relu()  # (N, W)
