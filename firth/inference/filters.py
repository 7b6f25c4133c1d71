"""What may come next: functions on the scores of all tokens, each of them pure.

    B  texts     V  vocabulary     T  tokens of the longest text so far

They are applied in the order in which `transformers` does it, and give what its classes give.
A history (B, T) holds all tokens of each text, the last one last; before the first of them stands
`NOTHING`.

The handout's exercise: four words have the scores 2.5, 1.0, 0.5 and 1.5. How likely is each?

>>> scores = torch.tensor([[2.5, 1.0, 0.5, 1.5]])
>>> for temperature in (0.5, 1.0, 2.0):
...     print([round(p, 3) for p in heat(scores, temperature).softmax(-1)[0].tolist()])
[0.831, 0.041, 0.015, 0.112]
[0.579, 0.129, 0.078, 0.213]
[0.409, 0.193, 0.15, 0.248]
"""

from __future__ import annotations

import torch
from torch import Tensor

from firth.inference.settings import Generation

NOTHING = -1
NEVER = float("-inf")


def penalise(scores: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Make tokens less likely that are there already (Keskar et al. 2019, CTRL, section 4.1).

    >>> penalise(torch.tensor([[2.0, -2.0, 1.0]]), torch.tensor([[NOTHING, 0, 1]]), 2.0).tolist()
    [[1.0, -4.0, 1.0]]
    """
    rows, vocabulary = scores.shape
    there = scores.new_zeros(rows, vocabulary + 1, dtype=torch.bool)
    there.scatter_(1, history.where(history != NOTHING, vocabulary), True)
    lower = torch.where(scores < 0, scores * penalty, scores / penalty)
    return torch.where(there[:, :vocabulary], lower, scores)


def forbid_ngrams(scores: Tensor, history: Tensor, n: int) -> Tensor:
    """Rule out each token that would repeat a run of n tokens (Paulus et al. 2018, section 2.5).

    >>> forbid_ngrams(torch.zeros(1, 4), torch.tensor([[NOTHING, 3, 1, 2, 3, 1]]), 3).tolist()
    [[0.0, 0.0, -inf, 0.0]]
    """
    rows, vocabulary = scores.shape
    if history.shape[1] < n:
        return scores
    runs = history.unfold(1, n, 1)  # (B, T - n + 1, n)
    last = history[:, history.shape[1] - n + 1 :]  # (B, n - 1)
    again = (runs[..., :-1] == last[:, None]).all(-1)
    then = runs[..., -1].where(again & (runs[..., -1] != NOTHING), vocabulary)
    ruled = scores.new_zeros(rows, vocabulary + 1, dtype=torch.bool).scatter_(1, then, True)
    return scores.masked_fill(ruled[:, :vocabulary], NEVER)


def heat(scores: Tensor, temperature: float) -> Tensor:
    """Sharper below 1, flatter above."""
    return scores / temperature


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """The k likeliest tokens, and any as likely as the last of them (Fan et al. 2018).

    >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2).tolist()
    [[-inf, 3.0, 2.0]]
    """
    least = scores.topk(min(k, scores.shape[-1])).values[:, -1:]
    return scores.masked_fill(scores < least, NEVER)


def keep_top_p(scores: Tensor, p: float) -> Tensor:
    """The fewest of the likeliest tokens that have probability p together (Holtzman et al. 2020).

    >>> keep_top_p(torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log(), 0.7).exp().tolist()
    [[0.5, 0.25, 0.0, 0.0]]
    """
    rising, order = scores.sort(-1)
    below = rising.softmax(-1).cumsum(-1) <= 1 - p
    below[:, -1] = False
    return scores.masked_fill(below.scatter(1, order, below), NEVER)


def keep_min_p(scores: Tensor, p: float) -> Tensor:
    """Tokens at least p times as likely as the likeliest (Nguyen et al. 2024).

    >>> keep_min_p(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), 0.2).exp().gt(0).tolist()
    [[True, True, True, False]]
    """
    shares = scores.softmax(-1)
    most, best = shares.max(-1, keepdim=True)
    below = (shares < p * most).scatter(1, best, False)
    return scores.masked_fill(below, NEVER)


def repeat_less(scores: Tensor, history: Tensor | None, settings: Generation) -> Tensor:
    """What every method does to scores: (B, V) -> (B, V)."""
    if history is not None and settings.repetition_penalty != 1.0:
        scores = penalise(scores, history, settings.repetition_penalty)
    if history is not None and settings.no_repeat_ngram:
        scores = forbid_ngrams(scores, history, settings.no_repeat_ngram)
    return scores


def narrow(scores: Tensor, settings: Generation) -> Tensor:
    """What is done before a token is drawn: (B, V) -> (B, V)."""
    if settings.temperature != 1.0:
        scores = heat(scores, settings.temperature)
    if settings.top_k:
        scores = keep_top_k(scores, settings.top_k)
    if settings.top_p < 1.0:
        scores = keep_top_p(scores, settings.top_p)
    if settings.min_p > 0.0:
        scores = keep_min_p(scores, settings.min_p)
    return scores


def draw(scores: Tensor, numbers: Tensor) -> Tensor:
    """One token for each text, by a number from 0 to below 1 (float64) for each.

    >>> draw(torch.tensor([[0.25, 0.0, 0.75]] * 3).log(), torch.tensor([0.0, 0.2, 0.3]).double())
    tensor([0, 0, 2])
    """
    sums = scores.double().softmax(-1).cumsum(-1)  # (B, V)
    whole = sums[:, -1:]
    # Rounding may not lift a number to the sum of all: behind it no token is.
    below = (numbers[:, None] * whole).minimum(torch.nextafter(whole, torch.zeros_like(whole)))
    found = torch.searchsorted(sums, below, right=True).squeeze(1)
    return found.clamp_(max=scores.shape[-1] - 1)  # where the scores are not numbers
