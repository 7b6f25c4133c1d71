"""Logits processors: pure functions (B, V) -> (B, V) that change the next-token logits.

    B  sequences     V  vocabulary     T  tokens of the longest sequence so far

They run in the same order as in `transformers` and compute the same values. A history (B, T) holds
the previous tokens of each sequence, padded on the left with `HISTORY_PAD`.

Temperature in numbers: the probabilities of four tokens with logits 2.5, 1.0, 0.5 and 1.5.

>>> logits = torch.tensor([[2.5, 1.0, 0.5, 1.5]])
>>> for temperature in (0.5, 1.0, 2.0):
...     print([round(p, 3) for p in apply_temperature(logits, temperature).softmax(-1)[0].tolist()])
[0.831, 0.041, 0.015, 0.112]
[0.579, 0.129, 0.078, 0.213]
[0.409, 0.193, 0.15, 0.248]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from firth.inference.generation.generation_config import GenerationConfig
from firth.models.config import LanguageModelConfig

HISTORY_PAD = -1
NEG_INF = float("-inf")
# On a CPU, the best tokens among which a nucleus is looked for first: of 49,152 tokens, sorting all
# takes 5 ms, and selecting these 0.5 ms.
NUCLEUS_CANDIDATES = 1024


def apply_repetition_penalty(logits: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Lower the logits of tokens in the history (Keskar et al. 2019, CTRL, section 4.1).

    >>> history = torch.tensor([[HISTORY_PAD, 0, 1]])
    >>> apply_repetition_penalty(torch.tensor([[2.0, -2.0, 1.0]]), history, 2.0).tolist()
    [[1.0, -4.0, 1.0]]
    """
    rows, vocab_size = logits.shape
    seen = logits.new_zeros(rows, vocab_size + 1, dtype=torch.bool)
    seen.scatter_(1, history.where(history != HISTORY_PAD, vocab_size), True)
    lower = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen[:, :vocab_size], lower, logits)


def block_repeated_ngrams(logits: Tensor, history: Tensor, n: int) -> Tensor:
    """Exclude tokens that would repeat an n-gram of the history (Paulus et al. 2018, section 2.5).

    >>> history = torch.tensor([[HISTORY_PAD, 3, 1, 2, 3, 1]])
    >>> block_repeated_ngrams(torch.zeros(1, 4), history, 3).tolist()
    [[0.0, 0.0, -inf, 0.0]]
    """
    rows, vocab_size = logits.shape
    if history.shape[1] < n:
        return logits
    ngrams = history.unfold(1, n, 1)  # (B, T - n + 1, n)
    prefix = history[:, history.shape[1] - n + 1 :]  # (B, n - 1)
    same = (ngrams[..., :-1] == prefix[:, None]).all(-1)
    last = ngrams[..., -1].where(same & (ngrams[..., -1] != HISTORY_PAD), vocab_size)
    blocked = logits.new_zeros(rows, vocab_size + 1, dtype=torch.bool).scatter_(1, last, True)
    return logits.masked_fill(blocked[:, :vocab_size], NEG_INF)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide logits by the temperature: below 1 sharpens the distribution, above 1 flattens it."""
    return logits / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k most probable tokens, and those tied with the last of them (Fan et al. 2018).

    >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2).tolist()
    [[-inf, 3.0, 2.0]]
    """
    lowest = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < lowest, NEG_INF)


def keep_top_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keep the smallest set of tokens with total probability p (nucleus, Holtzman et al. 2020).

    `p` is one number, or one of each row (B, 1).

    >>> keep_top_p(torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log(), 0.7).exp().tolist()
    [[0.5, 0.25, 0.0, 0.0]]
    """
    if logits.is_cuda or logits.shape[-1] <= NUCLEUS_CANDIDATES:
        return _sort_for_nucleus(logits, p)
    values, order = logits.topk(NUCLEUS_CANDIDATES)  # (B, candidates)
    probs = (values - logits.logsumexp(-1, keepdim=True)).exp()
    removed = probs.cumsum(-1) - probs >= p  # the tokens before have the probability p already
    nothing = torch.full_like(logits, NEG_INF)
    kept = nothing.scatter(1, order, values.masked_fill(removed, NEG_INF))
    rows = (~removed[:, -1]).nonzero().flatten()  # many tokens have similar probabilities
    if len(rows):
        kept[rows] = _sort_for_nucleus(logits[rows], p[rows] if isinstance(p, Tensor) else p)
    return kept


def _sort_for_nucleus(logits: Tensor, p: float | Tensor) -> Tensor:
    ascending, order = logits.sort(-1)
    removed = ascending.softmax(-1).cumsum(-1) <= 1 - p
    removed[:, -1] = False
    return logits.masked_fill(removed.scatter(1, order, removed), NEG_INF)


def keep_min_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keep tokens at least p times as probable as the most probable one (Nguyen et al. 2024).

    >>> keep_min_p(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), 0.2).exp().gt(0).tolist()
    [[True, True, True, False]]
    """
    probs = logits.softmax(-1)
    highest, best = probs.max(-1, keepdim=True)
    removed = (probs < p * highest).scatter(1, best, False)
    return logits.masked_fill(removed, NEG_INF)


class ForcedTokens(NamedTuple):
    """Tokens that some models always generate first and last (BART, mBART)."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def of(cls, config: LanguageModelConfig) -> ForcedTokens:
        """Return the forced tokens of a model; only an encoder-decoder has a first one."""
        first = config.forced_bos_token_id if config.has_encoder else None
        return cls(first, config.forced_eos_token_id)

    def __bool__(self) -> bool:
        return self != (None, None)

    def apply(self, logits: Tensor, position: Tensor, limits: Tensor) -> Tensor:
        """Exclude all other tokens at the first position, and at the last one within the limits.

        >>> position, limits = torch.tensor([3]), torch.tensor([4, 5])
        >>> ForcedTokens(last=1).apply(torch.ones(2, 3), position, limits).tolist()
        [[-inf, 0.0, -inf], [1.0, 1.0, 1.0]]
        """
        for id, is_forced in ((self.first, position == 0), (self.last, position + 1 >= limits)):
            if id is not None:
                only = torch.full_like(logits, NEG_INF)
                only[:, id] = 0.0
                logits = torch.where(is_forced[:, None], only, logits)
        return logits


def penalize_repetition(logits: Tensor, history: Tensor | None, config: GenerationConfig) -> Tensor:
    """Apply the repetition penalty and n-gram blocking, which all decoding methods support."""
    if history is not None and config.repetition_penalty != 1.0:
        logits = apply_repetition_penalty(logits, history, config.repetition_penalty)
    if history is not None and config.no_repeat_ngram:
        logits = block_repeated_ngrams(logits, history, config.no_repeat_ngram)
    return logits


def filter_logits(logits: Tensor, config: GenerationConfig) -> Tensor:
    """Apply temperature, top-k, top-p and min-p, before sampling."""
    if config.temperature != 1.0:
        logits = apply_temperature(logits, config.temperature)
    if config.top_k:
        logits = keep_top_k(logits, config.top_k)
    if config.top_p < 1.0:
        logits = keep_top_p(logits, config.top_p)
    if config.min_p > 0.0:
        logits = keep_min_p(logits, config.min_p)
    return logits


def sample_tokens(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Sample one token per sequence by inverting the CDF at a uniform number in [0, 1) (float64).

    >>> logits = torch.tensor([[0.25, 0.0, 0.75]] * 3).log()
    >>> sample_tokens(logits, torch.tensor([0.0, 0.2, 0.3]).double())
    tensor([0, 0, 2])
    """
    cdf = logits.double().softmax(-1).cumsum(-1)  # (B, V)
    total = cdf[:, -1:]
    # Rounding must not lift the threshold to the total: no token follows it.
    limit = torch.nextafter(total, torch.zeros_like(total))
    threshold = (uniforms[:, None] * total).minimum(limit)
    tokens = torch.searchsorted(cdf, threshold, right=True).squeeze(1)
    return tokens.clamp_(max=logits.shape[-1] - 1)  # NaN logits give V
