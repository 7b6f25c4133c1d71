"""A linear-chain conditional random field over tags (Lafferty et al. 2001; Lample et al. 2016).

The score of a sequence of tags is the sum of its emissions (the logits of each word's tag) and of
its transitions (a learned score for each pair of neighbouring tags, for the first and for the last
tag). Its probability is exp(score) divided by the sum over all sequences of tags, which the forward
algorithm computes in logarithms, word by word. With the maximum in place of the sum, the same
recursion gives the best sequence (Viterbi 1967).

S  sentences     L  words of the longest     K  tags     M  words of all sentences
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from firth.models.config import ModelConfig
from firth.models.label_heads import LabelHead
from firth.models.masks import Mask, PaddedGroup
from firth.utils.device_transfer import to_device
from firth.utils.rng import Bools


class LinearChainCrf(nn.Module):
    """Scores of neighbouring tags, and the recursions over all sequences of tags.

    Sentences are padded rows (S, L, K) with the lengths (S,) of each, all above 0.

    >>> crf = LinearChainCrf(2)
    >>> _ = nn.init.zeros_(crf.start), nn.init.zeros_(crf.end), nn.init.zeros_(crf.transitions)
    >>> with torch.no_grad():
    ...     crf.transitions[0, 0] = -9.0  # the first tag hardly ever follows itself
    >>> emissions, lengths = torch.tensor([[[2.0, 0.0], [1.0, 0.0]]]), torch.tensor([2])
    >>> crf.best_tags(emissions, lengths).tolist()
    [[0, 1]]
    >>> round(crf.log_partition(emissions, lengths).item(), 4)  # log(e^2 + e^1 + e^0 + e^-6)
    2.4078
    """

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.empty(num_tags))
        self.end = nn.Parameter(torch.empty(num_tags))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))  # from, to

    def score(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """Compute the score of one sequence of tags for each sentence."""  # (S, L) -> (S,)
        places = torch.arange(tags.shape[1], device=tags.device)
        inside = places < lengths[:, None]  # (S, L)
        own = emissions.gather(2, tags[..., None]).squeeze(2)  # (S, L)
        moves = self.transitions[tags[:, :-1], tags[:, 1:]]  # (S, L - 1)
        last = tags.gather(1, lengths[:, None] - 1).squeeze(1)
        total = (own * inside).sum(1) + (moves * inside[:, 1:]).sum(1)
        return total + self.start[tags[:, 0]] + self.end[last]

    def log_partition(self, emissions: Tensor, lengths: Tensor) -> Tensor:
        """Compute the logarithm of the sum over all sequences of tags."""  # (S,)
        return torch.logsumexp(self._forward(emissions, lengths)[-1] + self.end, dim=-1)

    def _forward(self, emissions: Tensor, lengths: Tensor) -> list[Tensor]:
        """Compute after each word the log-sum of all sequences that end in each tag."""
        states = [self.start + emissions[:, 0]]  # (S, K)
        for place in range(1, emissions.shape[1]):
            moves = states[-1][:, :, None] + self.transitions  # (S, from, to)
            new = torch.logsumexp(moves, dim=1) + emissions[:, place]
            states.append(torch.where((place < lengths)[:, None], new, states[-1]))
        return states

    def max_scores(
        self, emissions: Tensor, lengths: Tensor, allowed: Tensor | None = None
    ) -> Tensor:
        """Compute for each word and tag the score of the best sequence with that tag there.

        The tags with the highest scores are the best sequence: Viterbi's answer. `allowed` (K + 1,
        K) tells which tag may follow which; its last row is that of first words.
        """  # (S, L, K) -> (S, L, K)
        start: Tensor = self.start
        transitions: Tensor = self.transitions
        if allowed is not None:
            start = start.masked_fill(~allowed[-1], -torch.inf)
            transitions = transitions.masked_fill(~allowed[:-1], -torch.inf)
        ahead, behind = [start + emissions[:, 0]], [self.end.expand_as(emissions[:, 0])]
        for place in range(1, length := emissions.shape[1]):
            new = (ahead[-1][:, :, None] + transitions).amax(1) + emissions[:, place]
            ahead.append(new)
        for place in range(length - 1, 0, -1):
            following = (emissions[:, place] + behind[-1])[:, None, :] + transitions
            inside = (place < lengths)[:, None]
            behind.append(torch.where(inside, following.amax(2), behind[-1]))
        return torch.stack(ahead, 1) + torch.stack(behind[::-1], 1)

    def best_tags(
        self, emissions: Tensor, lengths: Tensor, allowed: Tensor | None = None
    ) -> Tensor:
        """Find the best sequence of tags of each sentence."""  # (S, L, K) -> (S, L)
        return self.max_scores(emissions, lengths, allowed).argmax(-1)


class CrfHead(LabelHead):
    """A label head whose tags are scored together; its logits are the emissions."""

    def __init__(self, config: ModelConfig, outputs: int) -> None:
        super().__init__(config, outputs)
        self.crf = LinearChainCrf(outputs)

    def tag_losses(self, logits: Tensor, targets: Tensor, lengths: Sequence[int]) -> Tensor:
        """Compute the negative log-likelihood of each sentence's tags."""  # (M, K) -> (S,)
        rows, sizes = _rows(lengths, logits.device)
        emissions, tags = rows.pad(logits), rows.pad(targets)
        return self.crf.log_partition(emissions, sizes) - self.crf.score(emissions, tags, sizes)

    def tag_probabilities(
        self, logits: Tensor, lengths: Sequence[int], allowed: Bools | None = None
    ) -> Tensor:
        """Compare the best sequences with each tag; the most probable tags are Viterbi's."""
        if not len(logits):
            return logits
        rows, sizes = _rows(lengths, logits.device)
        follows = None if allowed is None else to_device(allowed, logits.device)
        scores = self.crf.max_scores(rows.pad(logits), sizes, follows)
        return rows.unpad(scores).softmax(-1)  # (M, K)


def _rows(lengths: Sequence[int], device: torch.device) -> tuple[PaddedGroup, Tensor]:
    """Return the rows of sentences, without empty ones, and their lengths."""
    mask = Mask([length for length in lengths if length], device=device)
    return mask.rows, mask.lengths_tensor
