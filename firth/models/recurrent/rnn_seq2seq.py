"""Sequence-to-sequence learning with recurrent networks, with or without attention.

    N  tokens of the batch     S  sequences     W  hidden size     E  embedding size
    M  tokens of the source    L  tokens of the longest source     T  tokens of the longest target

A bidirectional LSTM reads the source, another LSTM writes the target token by token (Sutskever et
al. 2014). Without attention, the decoder's first state is all it knows of the source:

    none      s_t = LSTM(y_t, s_t-1),          s_0 a linear function of the encoder's last states
    bahdanau  s_t = LSTM([y_t; c_t], s_t-1),   the context c_t is chosen by s_t-1
    luong     s_t = LSTM(y_t, s_t-1),          the context c_t is chosen by s_t

With attention (`alignment.py`), the output is tanh(C [c_t; s_t]). With input feeding, Luong's LSTM
also reads the output of the step before (Luong et al. 2015, section 3.3). Where no step needs the
context of an earlier one (none, and luong without input feeding), torch's fused kernel runs over
the whole target; otherwise over one token at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from firth.models.heads import make_head
from firth.models.masks import Mask
from firth.models.recurrent.alignment import ATTENTIONS
from firth.models.recurrent.packed_rnn import RecurrentLayers, RecurrentState
from firth.models.recurrent.seq2seq_configs import RnnSeq2SeqConfig
from firth.models.word_embedding import WordEmbedding, WordNetwork


@dataclass
class DecoderState:
    """What the next step of the decoder needs: of the source, and of the steps before."""

    layers: RecurrentState
    memory: Tensor  # (S, L, W) vectors of the source
    keys: Tensor  # (S, L, W) what attention scores are computed of
    visible: Tensor  # (S, L) False where the source is padded
    output: Tensor  # (S, W) of the last step; 0 before the first

    def select(self, rows: Tensor) -> None:
        """Continue with these sequences, in this order, each once or several times."""
        self.layers.select(rows)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.index_select(0, rows))

    def join(self, other: DecoderState) -> None:
        """Append the sequences of another state; the shorter sources are padded."""
        self.layers.join(other.layers)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                both = value, getattr(other, name)
                length = max(part.shape[1] for part in both)
                setattr(self, name, torch.cat([_pad(part, length) for part in both]))


def _pad(values: Tensor, length: int) -> Tensor:
    """Pad values with zeros."""  # (S, L, ...) -> (S, length, ...)
    return pad(values, (0, 0) * (values.dim() - 2) + (0, length - values.shape[1]))


class RnnSeq2Seq(WordNetwork):
    """A bidirectional LSTM encoder and an LSTM decoder with attention.

    >>> sizes = dict(vocab_size=10, max_positions=8, hidden_size=6, num_layers=1)
    >>> network = RnnSeq2Seq(RnnSeq2SeqConfig(**sizes, attention="luong"), ["language"])
    >>> source, target = Mask([3, 2]), Mask.causal([2, 1])
    >>> memory = network.encode(torch.tensor([1, 2, 3, 4, 5]), source)
    >>> network(torch.tensor([0, 7, 0]), target, memory=memory, memory_mask=source).shape
    torch.Size([3, 6])
    """

    config: RnnSeq2SeqConfig

    def __init__(self, config: RnnSeq2SeqConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        hidden, embedding = config.hidden_size, config.token_embedding_size
        num_layers = config.num_output_layers
        self.tokens = WordEmbedding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = RecurrentLayers(
            embedding,
            hidden // 2,
            num_layers=config.num_layers,
            bidirectional=True,
            dropout=config.dropout,
        )
        self.bridge = nn.Linear(hidden, num_layers * 2 * hidden)
        kind = ATTENTIONS.get(config.attention)
        self.attention = None if kind is None else kind(hidden)
        self.decoder = RecurrentLayers(
            embedding + hidden * self.feeds_context,
            hidden,
            num_layers=num_layers,
            dropout=config.dropout,
        )
        self.output = None if kind is None else nn.Linear(2 * hidden, hidden)
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})

    @property
    def feeds_context(self) -> bool:
        """Whether a step reads a context, so that it must wait for the step before."""
        return self.config.attention == "bahdanau" or self.config.input_feeding

    def encode(self, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        """Compute the encoder's hidden states: (M,) -> (M, W)."""
        x = self.dropout(self.embed(tokens))  # (M, E)
        return self.encoder(x, mask, layers=inputs.get("layers"))

    def embed(self, tokens: Tensor) -> Tensor:
        """Look up the embeddings of tokens."""
        return self.tokens(tokens)

    def forward(
        self,
        tokens: Tensor,
        mask: Mask,
        *,
        memory: Tensor,
        memory_mask: Mask,
        alignments: list[Tensor] | None = None,
    ) -> Tensor:
        """Compute what predicts the token after each of the target's: (N,) -> (N, W).

        `memory` is the output of `encode`. The attention weights are appended to `alignments`:
        (N, L), a row for each token.
        """
        state, rows = self.start(memory, memory_mask), mask.rows
        if self.feeds_context:
            steps = [self.step(step, state) for step in rows.pad(tokens).unbind(1)]
            outputs, weights = (torch.stack(parts, 1) for parts in zip(*steps, strict=True))
        else:
            x = self.dropout(self.embed(tokens))  # (N, E)
            s = self.decoder(x, mask, state=state.layers)  # (N, W)
            outputs, weights = self.attend(rows.pad(s), rows.pad(x), state)  # (S, T, W), (S, T, L)
        if alignments is not None:
            alignments.append(rows.unpad(weights))
        return rows.unpad(outputs)

    def start(self, memory: Tensor, mask: Mask) -> DecoderState:
        """Compute the decoder's state before its first token."""
        half, rows = self.config.hidden_size // 2, mask.rows
        last, first = mask.starts[1:] - 1, mask.starts[:-1]
        ends = torch.cat([memory[last, :half], memory[first, half:]], -1)  # (S, W)
        states = self.bridge(ends).tanh().unflatten(-1, (-1, 2, self.config.hidden_size))
        layers = RecurrentState()
        for i, pair in enumerate(states.unbind(1)):  # (S, 2, W): hidden state and cell
            layers.layers[i] = tuple(part[None].contiguous() for part in pair.unbind(1))
        padded = rows.pad(memory)  # (S, L, W)
        keys = padded if self.attention is None else self.attention.keys(padded)
        output = memory.new_zeros(len(mask), self.config.hidden_size)
        return DecoderState(layers, padded, keys, rows.padding_mask, output)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        """Read one token of each sequence; return outputs (S, W) and attention (S, L)."""
        x, weights = self.dropout(self.embed(tokens)), None  # (S, E)
        if self.config.input_feeding:
            x = torch.cat([x, state.output], -1)
        elif self.feeds_context:  # the state before chooses the context
            before = state.layers.layers[self.config.num_output_layers - 1][0][-1]  # (S, W)
            context, weights = self._context(before[:, None], state)
            x = torch.cat([x, context[:, 0]], -1)
        one_each = Mask.causal([1] * len(tokens), device=tokens.device)
        s = self.decoder(x, one_each, state=state.layers)[:, None]  # (S, 1, W)
        if weights is None:
            outputs, weights = self.attend(s, x[:, None], state)
        else:
            outputs = self._combine(context, s)
        state.output = outputs[:, 0]
        return state.output, weights[:, 0]

    def attend(self, states: Tensor, inputs: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        """Return the outputs (S, T, W) of decoder states, and their attention (S, T, L).

        `inputs` are what the decoder read; subclasses may use them.
        """
        if self.attention is None:
            none = states.new_zeros(*states.shape[:2], state.visible.shape[1])
            return self.dropout(states), none
        context, weights = self._context(states, state)
        return self._combine(context, states), weights

    def _context(self, states: Tensor, state: DecoderState) -> tuple[Tensor, Tensor]:
        assert self.attention is not None
        weights = self.attention(states, state.keys, state.visible)  # (S, T, L)
        return weights @ state.memory, weights

    def _combine(self, context: Tensor, states: Tensor) -> Tensor:
        assert self.output is not None
        return self.dropout(torch.tanh(self.output(torch.cat([context, states], -1))))  # (…, W)
