"""An LSTM over words, with label heads: the classifiers and taggers before pre-training.

    lstm              one direction; the head reads the last state
    bilstm-attention  both directions; a weighted mean of all states (Zhou et al. 2016)
    bilstm-crf        both directions and the characters of words; a CRF over the tags
                      (Huang et al. 2015; Lample et al. 2016; Ma and Hovy 2016)

N  tokens of the batch     W  hidden size, of both directions
E  size of a word's vector, embedding and contextual features     F  features of characters
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from firth.models.character_cnn import CharacterCNN, CharacterVectors
from firth.models.heads import make_head
from firth.models.masks import Mask
from firth.models.recurrent.packed_rnn import RecurrentLayers
from firth.models.task_specific.text_configs import TextLstmConfig
from firth.models.word_embedding import WordEmbedding, WordNetwork
from firth.tokenizers.tokenizer import Tokenizer

CHARACTER_WIDTH = 3  # of filters, as Ma and Hovy 2016
MAX_CHARACTERS = 25  # of a word, with its two marks


class TextLstm(WordNetwork):
    """An LSTM over the embeddings of words and, optionally, over features of their characters.

    >>> config = TextLstmConfig(
    ...     architecture="encoder", vocab_size=9, max_positions=32, hidden_size=6, num_layers=1,
    ...     embedding_size=4, bidirectional=True,
    ... )
    >>> TextLstm(config)(torch.tensor([1, 2, 3, 4, 5]), Mask([3, 2])).shape
    torch.Size([5, 6])
    """

    config: TextLstmConfig

    def __init__(self, config: TextLstmConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.tokens = WordEmbedding(config)
        self.characters = None
        if config.character_filters:
            filters = [(CHARACTER_WIDTH, config.character_filters)]
            cnn = CharacterCNN(config.character_size, filters, highway_layers=0)
            self.characters = CharacterVectors(config.vocab_size, cnn, MAX_CHARACTERS)
        self.encoder = RecurrentLayers(
            config.word_vector_size + config.character_filters,
            config.hidden_size // (1 + config.bidirectional),
            num_layers=config.num_layers,
            bidirectional=config.bidirectional,
            dropout=config.dropout,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    def read_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Store the characters of the vocabulary."""
        if self.characters is not None:
            self.characters.characters.read_vocabulary(tokenizer)

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        x = self.word_vectors(tokens, mask)  # (N, E)
        if self.characters is not None:
            x = torch.cat([x, self.characters(tokens)], dim=-1)  # (N, E + F)
        return self.encoder(self.dropout(x), mask)  # (N, W)
