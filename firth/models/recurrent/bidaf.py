"""BiDAF: attention between a question and a text, in both directions (Seo et al. 2017).

    N  tokens of the batch     S  sequences       T  context tokens     J  question tokens
    d  LSTM size               W  10 d: what the start and the end of an answer are predicted from

    1, 2  words (and their characters) as vectors, through two highway layers
    3     contextual BiLSTM: h of each context token, u of each question token   (2d)
    4     attention flow: g = [h; ũ; h∘ũ; h∘h̃]                                    (8d)
    5     modelling BiLSTM over g: m                                             (2d)
    6     start = w1 · [g; m];  end = w2 · [g; m'], m' a BiLSTM over m

A sequence is a question, a separator and a context. The separator is read as the first token of the
context, and its start and end logits are those of "no answer". The task reads the logits of "no
answer" at the first token of the sequence (Devlin et al. 2019), so they are moved there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from firth.models.character_cnn import CharacterCNN, CharacterVectors, Highway
from firth.models.heads import make_head
from firth.models.masks import Mask
from firth.models.recurrent.bidaf_config import BidafConfig
from firth.models.recurrent.packed_rnn import RecurrentLayers
from firth.models.word_embedding import WordEmbedding, WordNetwork
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.device_transfer import to_device
from firth.utils.rng import Longs

CHARACTER_WIDTH = 5  # of filters (section 2)
MAX_CHARACTERS = 25  # of a word, with its two marks
EXCLUDED = -1e4  # logit of a token that no answer can begin or end with


class AttentionFlow(nn.Module):
    """Attend from the context to the question and back; the similarity is w · [h; u; h∘u].

    With w = (1, 1, 1) and d = 1/2, the similarity of h = 2 and u = 3 is 2 + 3 + 6 = 11, that of
    h = 2 and u = 0 is 2. So the softmax over the question is nearly (1, 0), and ũ nearly 3:

    >>> flow = AttentionFlow(1)
    >>> for part in (flow.context, flow.question):
    ...     _ = nn.init.ones_(part.weight)
    >>> _ = nn.init.ones_(flow.product)
    >>> h, u = torch.tensor([[[2.0]]]), torch.tensor([[[3.0], [0.0]]])
    >>> flow.similarity(h, u).tolist()
    [[[11.0, 2.0]]]
    >>> g = flow(h, u, torch.tensor([[True]]), torch.tensor([[True, True]]))
    >>> [round(value, 2) for value in g.flatten().tolist()]  # h, ũ, h∘ũ, h∘h̃ with h̃ = h
    [2.0, 3.0, 6.0, 4.0]
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.context = nn.Linear(size, 1, bias=False)
        self.question = nn.Linear(size, 1, bias=False)
        self.product = nn.Parameter(torch.empty(1, size))

    def similarity(self, h: Tensor, u: Tensor) -> Tensor:
        """Compute the similarity of each context and question token."""  # (S, T, J)
        return self.context(h) + self.question(u).mT + (h * self.product) @ u.mT

    def forward(self, h: Tensor, u: Tensor, context: Tensor, question: Tensor) -> Tensor:
        """Compute g: (S, T, 2d), (S, J, 2d) and what is no padding in both -> (S, T, 8d)."""
        similarity = self.similarity(h, u).masked_fill(~question[:, None], -torch.inf)
        attended = similarity.softmax(-1) @ u  # ũ: (S, T, 2d)
        best = similarity.amax(-1).masked_fill(~context, -torch.inf)  # (S, T)
        summary = best.softmax(-1)[:, None] @ h  # h̃: (S, 1, 2d)
        return torch.cat([h, attended, h * attended, h * summary], -1)


class Bidaf(WordNetwork):
    """Predict where the answer to a question begins and ends in a text.

    >>> sizes = dict(vocab_size=9, max_positions=32, embedding_size=4, lstm_size=3)
    >>> network = Bidaf(BidafConfig(**sizes, character_filters=0, eos_token_id=1), ["span"])
    >>> mask = Mask([7])  # a question of two words, a separator and a context of four words
    >>> rows = network(torch.tensor([3, 4, 1, 5, 6, 7, 8]), mask)
    >>> (network.label_logits(rows, mask.starts) > -1000).int().sum(1).tolist()
    [2, 0, 0, 2, 2, 2, 2]
    """

    config: BidafConfig

    def __init__(self, config: BidafConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config, d = config, config.lstm_size
        self.tokens = WordEmbedding(config)
        self.characters = None
        if config.character_filters:
            filters = [(CHARACTER_WIDTH, config.character_filters)]
            cnn = CharacterCNN(config.character_size, filters, highway_layers=0)
            self.characters = CharacterVectors(config.vocab_size, cnn, MAX_CHARACTERS)
        size = config.word_vector_size + config.character_filters
        self.highways = nn.Sequential(Highway(size), Highway(size))
        both: dict[str, Any] = dict(bidirectional=True, dropout=config.dropout)
        self.contextual = RecurrentLayers(size, d, **both)
        self.flow = AttentionFlow(2 * d)
        self.modelling = RecurrentLayers(8 * d, d, num_layers=config.num_layers, **both)
        self.end = RecurrentLayers(2 * d, d, **both)
        self.dropout = nn.Dropout(config.dropout)
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    def read_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Store the characters of the vocabulary."""
        if self.characters is not None:
            self.characters.characters.read_vocabulary(tokenizer)

    def embed(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Compute vectors of words, from their embeddings and characters."""
        x = self.word_vectors(tokens, mask)  # (N, E)
        if self.characters is not None:
            x = torch.cat([x, self.characters(tokens)], -1)  # (N, E + F)
        return self.highways(x)

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Compute what start and end are predicted from: (N,) -> (N, 2 W + 1).

        The last column is 1 where an answer may begin or end.
        """
        parts = split_question(tokens, mask, self.config.eos_token_id)
        x = self.dropout(self.embed(tokens, mask))
        h = self.contextual(x[parts.context_tokens], parts.context)
        u = self.contextual(x[parts.question_tokens], parts.question)
        rows, other = parts.context.rows, parts.question.rows
        g = rows.unpad(
            self.flow(rows.pad(h), other.pad(u), rows.padding_mask, other.padding_mask)
        )  # (context tokens, 8d)
        m = self.modelling(self.dropout(g), parts.context)
        last = self.end(self.dropout(m), parts.context)
        found = torch.cat([g, m, g, last, torch.ones_like(m[:, :1])], -1)
        return found.new_zeros(len(tokens), found.shape[1]).index_copy(0, parts.output, found)

    def label_logits(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """Compute the logits of start and end; those of the question's tokens are excluded."""
        start, end, answers = hidden.split([self.config.hidden_size] * 2 + [1], -1)
        head = self.heads["span"]
        logits = torch.stack([head(start)[:, 0], head(end)[:, 1]], -1)  # (N, 2)
        return logits.masked_fill(answers == 0, EXCLUDED)


@dataclass(frozen=True)
class QuestionAndContext:
    """The two parts of packed sequences."""

    question: Mask
    question_tokens: Tensor  # their indices in the batch
    context: Mask
    context_tokens: Tensor
    output: Tensor  # where the context's results belong; that of the separator to the first token


def split_question(tokens: Tensor, mask: Mask, separator: int | None) -> QuestionAndContext:
    """Split each sequence at its first separator, which is the context's first token.

    A sequence without a separator, or one that begins with it, has its first token as question.

    >>> parts = split_question(torch.tensor([5, 6, 1, 7, 8, 1, 9]), Mask([5, 2]), separator=1)
    >>> parts.question_tokens.tolist(), parts.context_tokens.tolist(), parts.output.tolist()
    ([0, 1, 5], [2, 3, 4, 5, 6], [0, 3, 4, 5, 6])
    """
    ids, lengths = tokens.cpu().numpy(), mask.lengths
    starts = np.cumsum(lengths) - lengths
    first = np.array(
        [_first(ids[a : a + n], separator) for a, n in zip(starts, lengths, strict=True)], np.int64
    )
    question_lengths = np.maximum(first, 1)
    positions = np.arange(len(ids)) - np.repeat(starts, lengths)
    in_question = positions < np.repeat(question_lengths, lengths)
    in_context = positions >= np.repeat(first, lengths)
    output = np.flatnonzero(in_context)
    output[np.cumsum(lengths - first) - (lengths - first)] = starts
    device = tokens.device
    return QuestionAndContext(
        question=Mask(question_lengths, device=device),
        question_tokens=to_device(np.flatnonzero(in_question), device),
        context=Mask(lengths - first, device=device),
        context_tokens=to_device(np.flatnonzero(in_context), device),
        output=to_device(output, device),
    )


def _first(ids: Longs, separator: int | None) -> int:
    """Return the position of the first separator; 0 if there is none."""
    found = np.flatnonzero(ids == separator) if separator is not None else ids[:0]
    return int(found[0]) if len(found) else 0
