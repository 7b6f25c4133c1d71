"""An output of a model that an attribution explains, as a function of its input.

It is the log-odds of a prediction with the probability p, ln(p / (1 - p)). Unlike ln p, they do not
saturate where a model is sure.

S  sequences     N  tokens of all sequences     T  tokens of one     P  predicted positions
W  hidden size   E  embedding size   K  alternatives: labels, tokens of the vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.data.packing import PackedSequences
from firth.models.language_model import LanguageNetwork
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.losses import hidden_states
from firth.utils.rng import Bools, Longs

# Hidden states (N, W), starts of sequences (S + 1,), predicted positions (S, P) -> outputs (S,)
Score = Callable[[LanguageNetwork, Tensor, Tensor, Tensor], Tensor]


class InputRow(NamedTuple):
    """An input sequence, and the positions at which the network predicts."""

    tokens: Longs  # (T,)
    segments: Longs  # (T,)
    positions: Longs  # (P,) among these tokens, or among the decoder's


@dataclass(frozen=True, kw_only=True)
class ExplainedOutput:
    """One number that a network computes, and the input that it is computed from."""

    name: str  # such as "log-odds of the label positive"
    tokenizer: Tokenizer  # of the input
    row: InputRow
    score: Score
    is_text: Bools  # (T,) tokens of the text; False: special tokens
    attention: str = "bidirectional"  # "causal", or "prefix": bidirectional before the prediction
    decoder_tokens: Longs | None = None  # if an encoder-decoder predicts tokens
    for_labels: bool = False  # a label head computes it, which may read another layer
    num_truncated: int = 0  # tokens of the text that the model cannot read

    def outputs(self, network: LanguageNetwork, rows: Sequence[InputRow]) -> Tensor:
        """Compute the output for each of several inputs."""  # (S,)
        keys = np.zeros(len(rows), dtype=np.uint64)
        joined = PackedSequences.join([row.tokens for row in rows], keys)
        segments = np.concatenate([row.segments for row in rows])
        inputs = PackedSequences(joined.tokens, joined.starts, keys, segments)
        target = None
        if self.decoder_tokens is not None:
            target = PackedSequences.join([self.decoder_tokens] * len(rows), keys)
        batch = Batch(inputs, np.array([self._prefix(row) for row in rows]), target=target)
        hidden = hidden_states(network, batch, for_labels=self.for_labels)  # (N, W)
        starts = torch.from_numpy(batch.output.starts).to(hidden.device)
        positions = torch.from_numpy(np.stack([row.positions for row in rows])).to(hidden.device)
        return self.score(network, hidden, starts, starts[:-1, None] + positions).float()

    @property
    def predicts_next(self) -> bool:
        """Whether the network predicts the tokens after the text, each from those before it."""
        return self.attention != "bidirectional" and not self.for_labels

    @property
    def context_length(self) -> int:
        """The number of tokens that the first prediction reads."""
        return int(self.row.positions[0]) + 1 if self.predicts_next else len(self.row.tokens)

    def _prefix(self, row: InputRow) -> int:
        """Return the number of first tokens that attend in both directions."""
        if self.attention == "prefix":
            return int(row.positions[0]) + 1
        return len(row.tokens) if self.attention == "bidirectional" else 0

    def without(self, places: Sequence[int]) -> InputRow:
        """Return the input without some tokens; the predicted positions move with their tokens.

        The next token is predicted at the one before it, also if the text now ends earlier.
        """
        row, positions = self.row, self.row.positions
        if self.decoder_tokens is None:
            last = positions if self.predicts_next else positions - 1
            earlier = (np.array(places)[:, None] <= last).sum(0)
            positions = np.minimum(positions - earlier, len(row.tokens) - len(places) - 1)
        return InputRow(np.delete(row.tokens, places), np.delete(row.segments, places), positions)

    def replaced(self, places: Sequence[int], id: int) -> InputRow:
        """Return the input with another token at some places."""
        tokens = self.row.tokens.copy()
        tokens[list(places)] = id
        return self.row._replace(tokens=tokens)


def log_odds(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the log-odds of one alternative in each row: (S, K), (S,) -> (S,).

    >>> log_odds(torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([1, 1])).tolist()
    [2.0, 0.0]
    """
    index = targets[:, None]
    others = logits.scatter(1, index, -torch.inf).logsumexp(-1)
    return logits.gather(1, index).squeeze(1) - others


def text_tokens(tokenizer: Tokenizer, ids: Longs) -> Bools:
    """Tell which tokens are of the text: all but the special ones; unknown words are text too."""
    special = tokenizer.vocabulary.special[ids]
    frame = {id for role, id in tokenizer.special_ids.items() if role != "unk"}
    unknown = tokenizer.unknown_id
    is_unknown = np.full(len(ids), False) if unknown in frame else ids == unknown
    text: Bools = ~special | is_unknown
    return text


@contextmanager
def replaced_embeddings(network: Transformer, embeddings: Tensor) -> Iterator[None]:
    """Make the next forward pass read these embeddings (N, E) instead of those of its tokens.

    In an encoder-decoder they are the encoder's.
    """
    pending = [embeddings]  # the decoder may look up its own tokens in the same matrix afterwards

    def replace(module: Any, arguments: Any, output: Tensor) -> Tensor:
        return pending.pop() if pending else output

    handle = network.token_embeddings(network.stacks[0]).register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
