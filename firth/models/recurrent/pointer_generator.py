"""The pointer-generator: a decoder that can copy words of the source (See et al. 2017).

    S  sequences     L  tokens of the longest source     T  tokens of the longest target
    W  hidden size   E  embedding size   V  vocabulary size   X  unknown words of the sources
    M, N  tokens of the sources, of a batch     P  some tokens

At each step the attention weights a on the source are also a distribution of the word to copy. A
gate p, which depends on the context, the decoder's state and its input, mixes both distributions:

    P(word) = p P_vocab(word) + (1 - p) Σ a_i over the source tokens i that are this word

So a source word outside the vocabulary has a probability, too: the unknown words of a source are
numbered V, V + 1, … in the order of their occurrence, and logits have V + X columns. All of them
have the embedding of `<unk>`: what is around a name tells the network which one to copy.

With coverage, attention also depends on the sum of the weights so far, and the loss term
`coverage`, Σ min(a_i, c_i), penalizes attending to a token again (section 2.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from firth.models.masks import Mask
from firth.models.recurrent.alignment import AdditiveAttention, masked_softmax
from firth.models.recurrent.rnn_seq2seq import DecoderState, RnnSeq2Seq
from firth.models.recurrent.seq2seq_configs import PointerGeneratorConfig
from firth.tokenizers.open_vocabulary import FIRST_OPEN_ID, extended_ids
from firth.tokenizers.tokenizer import Tokenizer

MIN_PROB = 1e-12  # added to probabilities, so that those of impossible words have a logarithm
FREQUENT_WORDS = 100  # the first of the vocabulary; word dropout keeps them


@dataclass
class CopyState(DecoderState):
    """The state of a decoder that copies words."""

    source: Tensor  # (S, L) ids of the source tokens, those of unknown words from V on
    covered: Tensor  # (S, L) sums of the attention weights so far


class CoverageAttention(AdditiveAttention):
    """Additive attention whose scores also depend on the attention so far."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.coverage = nn.Linear(1, size, bias=False)

    def weigh(self, states: Tensor, keys: Tensor, visible: Tensor, covered: Tensor) -> Tensor:
        """Compute attention weights: (S, W), (S, L, W), (S, L), (S, L) -> (S, L)."""
        sums = self.query(states)[:, None] + keys + self.coverage(covered[..., None])
        scores = self.score(sums.tanh()).squeeze(-1)  # (S, L)
        return masked_softmax(scores[:, None], visible)[:, 0]


class PointerGenerator(RnnSeq2Seq):
    """A recurrent encoder-decoder that generates words or copies them from its source.

    >>> sizes = dict(vocab_size=10, max_positions=8, hidden_size=6, num_layers=1)
    >>> network = PointerGenerator(PointerGeneratorConfig(**sizes), ["language"])
    >>> source = Mask([3])  # its second word is unknown: 10
    >>> memory = network.encode_source(torch.tensor([1, 10, 2]), source)
    >>> rows = network(torch.tensor([0]), Mask.causal([1]), memory=memory, memory_mask=source)
    >>> logits = network.logits(rows)
    >>> logits.shape, round(logits.exp().sum().item(), 4)
    (torch.Size([1, 11]), 1.0)
    """

    config: PointerGeneratorConfig
    logits_are_linear = False

    def __init__(self, config: PointerGeneratorConfig, heads: Iterable[str] = ()) -> None:
        super().__init__(config, heads)
        hidden, embedding = config.hidden_size, config.token_embedding_size
        if config.coverage:
            self.attention = CoverageAttention(hidden)
        self.gate = nn.Linear(2 * hidden + embedding, 1)
        self.dropped: Tensor | None = None  # (V,) words that this training step reads as unknown

    @property
    def feeds_context(self) -> bool:
        """The decoder reads words only (section 2.1), so all steps are computed together."""
        return False

    def read_vocabulary(self, tokenizer: Tokenizer) -> None:
        self.config = replace(self.config, unk_token_id=tokenizer.unknown_id)

    def embed(self, tokens: Tensor) -> Tensor:
        """Look up embeddings; unknown words have that of `<unk>`."""
        unknown = tokens >= self.config.vocab_size
        if self.training and self.dropped is not None:
            unknown = unknown | self.dropped[tokens.clamp(max=self.config.vocab_size - 1)]
        return super().embed(tokens.masked_fill(unknown, self.config.unk_token_id or 0))

    def encode_source(self, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        """Compute the source's hidden states and, in the last column, its ids."""  # (M, W + 1)
        if self.training:
            self._drop_words(tokens.device)
        ids = number_open_words(tokens, mask, self.config.vocab_size)
        # float32 has all integers up to 2**24
        return torch.cat([self.encode(ids, mask).float(), ids[:, None].float()], -1)

    def _drop_words(self, device: torch.device) -> None:
        """Draw the words of the vocabulary that this step reads as unknown."""
        size = self.config.vocab_size
        self.dropped = torch.rand(size, device=device) < self.config.word_dropout
        self.dropped[: min(FREQUENT_WORDS, size // 10)] = False
        self.dropped[[*self.config.special_token_ids.values()]] = False

    def start(self, memory: Tensor, mask: Mask) -> CopyState:
        state, ids = super().start(memory[:, :-1], mask), memory[:, -1]
        source = mask.rows.pad(ids).long()  # (S, L)
        covered = torch.zeros_like(state.visible, dtype=memory.dtype)
        return CopyState(**vars(state), source=source, covered=covered)

    def attend(self, states: Tensor, inputs: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        """Return the rows of `logits` (S, T, W + 2 + 2 L), and attention (S, T, L)."""
        assert isinstance(state, CopyState)
        weights = self._weights(states, state)  # (S, T, L)
        sums = state.covered[:, None] + weights.cumsum(1)
        repeated = torch.minimum(weights, sums - weights).sum(-1, keepdim=True)  # (S, T, 1)
        state.covered = sums[:, -1]
        context = weights @ state.memory  # (S, T, W)
        gate = self.gate(torch.cat([context, states, inputs], -1))  # (S, T, 1)
        source = state.source[:, None].expand_as(weights)
        parts = (self._combine(context, states), gate, repeated, weights, source)
        return torch.cat([part.float() for part in parts], -1), weights

    def _weights(self, states: Tensor, state: CopyState) -> Tensor:
        assert self.attention is not None
        if not isinstance(self.attention, CoverageAttention):
            return self.attention(states, state.keys, state.visible)
        covered, found = state.covered, []
        for s in states.unbind(1):
            found.append(self.attention.weigh(s, state.keys, state.visible, covered))
            covered = covered + found[-1]
        return torch.stack(found, 1)  # (S, T, L)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute log-probabilities of the vocabulary and the source's unknown words."""
        size, vocab_size = self.config.hidden_size, self.config.vocab_size
        outputs, gate, _, rest = hidden.split([size, 1, 1, hidden.shape[1] - size - 2], -1)
        weights, source = rest.chunk(2, -1)  # (P, L) each
        ids, p = source.long(), gate.sigmoid()
        columns = max(vocab_size, int(ids.max()) + 1) if ids.numel() else vocab_size
        generated = p * super().logits(outputs).float().softmax(-1)  # (P, V)
        both = pad(generated, (0, columns - vocab_size)).scatter_add(1, ids, (1 - p) * weights)
        return (both + MIN_PROB).log()  # (P, V + X)

    def coverage_losses(self, hidden: Tensor) -> Tensor:
        """Return how much of each step's attention was on tokens attended to before."""  # (P,)
        return hidden[:, self.config.hidden_size + 1]


def number_open_words(tokens: Tensor, mask: Mask, vocab_size: int) -> Tensor:
    """Number the open words of each sequence from `vocab_size` on, by first occurrence."""
    if not bool((tokens >= FIRST_OPEN_ID).any()):
        return tokens
    rows = np.split(tokens.cpu().numpy(), np.cumsum(mask.lengths)[:-1])
    numbered = np.concatenate([extended_ids(row, vocab_size)[0] for row in rows])
    return torch.from_numpy(numbered).to(tokens.device)
