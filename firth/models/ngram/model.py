"""A back-off n-gram model: probabilities of n-grams, and weights for contexts without them.

    N  tokens of the batch     P  some of the tokens     V  vocabulary size     C  n-grams

The probability of the next word is that of the longest n-gram that the model has, times the
back-off weights of all longer contexts:

    p(w | a b) = p(a b w)                    if the model has the trigram `a b w`, else
                 b(a b) p(b w)               if it has the bigram `b w`, else
                 b(a b) b(b) p(w)

N-grams are stored as sorted keys (`counting.py`), so all of a batch are found by binary search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.ngram.config import NgramConfig
from firth.models.ngram.kneser_ney import SmoothedOrder
from firth.utils.errors import MismatchError

NO_HIDDEN_STATES = (
    "An n-gram model has no hidden states: it scores and generates text, but cannot embed or be "
    "fine-tuned"
)


class NgramOrder(nn.Module):
    """The n-grams of one order."""

    keys: Tensor  # (C,) number of the context * V + last word, sorted

    def __init__(self, count: int, contexts: bool) -> None:
        """`contexts`: the n-grams are contexts of longer ones, and so have back-off weights."""
        super().__init__()
        self.register_buffer("keys", torch.empty(count, dtype=torch.int64))
        self.log_probs = nn.Parameter(torch.zeros(count), requires_grad=False)  # (C,)
        self.backoffs = nn.Parameter(torch.zeros(count * contexts), requires_grad=False)  # (C,)


class NgramModel(LanguageNetwork):
    """An n-gram model; its states are the last n - 1 tokens before each prediction.

    >>> smoothed = [  # of two words: 0 and 1; the bigram `0 1` has the probability 0.9
    ...     SmoothedOrder(np.arange(2), np.log([0.8, 0.2]), np.log([0.125, 1.0])),
    ...     SmoothedOrder(np.array([1]), np.log([0.9]), np.empty(0)),
    ... ]
    >>> model = NgramModel.from_orders(NgramConfig(order=2, vocab_size=2), smoothed)
    >>> states = model(torch.tensor([0, 1]), Mask.causal([2]))
    >>> [[round(p, 3) for p in row] for row in model.logits(states).exp().tolist()]
    [[0.1, 0.9], [0.8, 0.2]]
    """

    config: NgramConfig
    orders: Sequence[NgramOrder]

    def __init__(self, config: NgramConfig, heads: Iterable[str] = ("language",)) -> None:
        super().__init__()
        if others := set(heads) - {"language"}:
            raise MismatchError(f"{NO_HIDDEN_STATES} (the head {min(others)!r} needs them).")
        self.config = config
        self.heads = nn.ModuleDict({"language": nn.Identity()})  # the model predicts tokens
        counts = config.ngram_counts or (config.vocab_size, *[0] * (config.order - 1))
        orders = [NgramOrder(count, n < config.order) for n, count in enumerate(counts, start=1)]
        self.orders = nn.ModuleList(orders)  # type: ignore[assignment]
        self._best: dict[Any, Tensor] = {}  # of `_best_continuations`, computed when needed

    @classmethod
    def from_orders(cls, config: NgramConfig, smoothed: Sequence[SmoothedOrder]) -> NgramModel:
        """Build the model of smoothed counts; arrays are used without copying where possible."""
        values = {**vars(config), "ngram_counts": tuple(len(one.keys) for one in smoothed)}
        with torch.device("meta"):
            model = cls(type(config)(**values))
        state = {
            f"orders.{i}.{name}": torch.from_numpy(np.asarray(getattr(one, name), dtype=dtype))
            for i, one in enumerate(smoothed)
            for name, dtype in (
                ("keys", np.int64),
                ("log_probs", np.float32),
                ("backoffs", np.float32),
            )
        }
        model.load_state_dict(state, assign=True)
        return model.requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return self.orders[0].log_probs.device

    @property
    def dtype(self) -> torch.dtype:
        return self.orders[0].log_probs.dtype

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Return the last n - 1 tokens up to each token; -1 before the sequence."""
        places = np.concatenate([np.arange(length) for length in mask.lengths])
        place = torch.from_numpy(places).to(tokens.device)  # (N,)
        shifts = range(self.config.order - 2, -1, -1)
        columns = [tokens.roll(shift).where(place >= shift, -1) for shift in shifts]
        empty = tokens.new_empty(len(tokens), 0)
        return torch.stack(columns, dim=1) if columns else empty  # (N, n - 1)

    def encode(self, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        raise MismatchError(f"{NO_HIDDEN_STATES}.")

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the log-probabilities of all tokens after each state."""  # (P, n - 1) -> (P, V)
        found = self.orders[0].log_probs.repeat(len(hidden), 1)  # (P, V)
        for length in range(1, self.config.order):
            contexts = self.find_contexts(hidden, length)  # (P,)
            found += self._backoffs(contexts, length)[:, None]
            rows = (contexts >= 0).nonzero()[:, 0]
            contexts = contexts[rows]
            longer, size = self.orders[length], self.config.vocab_size
            starts = torch.searchsorted(longer.keys, contexts * size)
            counts = torch.searchsorted(longer.keys, (contexts + 1) * size) - starts
            inside = _aranges(counts) + starts.repeat_interleave(counts)
            words = longer.keys[inside] % size
            found[rows.repeat_interleave(counts), words] = longer.log_probs[inside]
        return found

    def score_tokens(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of one token after each state, and whether it is the top one.

        An n-gram is never less probable than its suffix times the back-off weight (interpolation),
        so the top token of a context is its own, or else the top token of the shorter context.
        """  # (P, n - 1), (P,) -> (P,), (P,)
        found = self.orders[0].log_probs[tokens]  # (P,)
        top = self.orders[0].log_probs.amax().expand_as(found)
        for length in range(1, self.config.order):
            contexts = self.find_contexts(hidden, length)
            ngrams = self._find(length + 1, contexts, tokens)
            known, longer = contexts >= 0, self.orders[length].log_probs
            backoffs = self._backoffs(contexts, length)
            own = longer[ngrams] if len(longer) else found
            found = own.where(ngrams >= 0, found + backoffs)
            best = self._best_continuations(length)[contexts] if len(longer) else top
            top = torch.maximum(best, top + backoffs).where(known, top)
        return found, found == top

    def _backoffs(self, contexts: Tensor, length: int) -> Tensor:
        """Return the log back-off weights of contexts by their numbers; 0 if unknown."""  # (P,)
        weights = self.orders[length - 1].backoffs
        return weights[contexts].where(contexts >= 0, 0.0) if len(weights) else contexts * 0.0

    def _best_continuations(self, length: int) -> Tensor:
        """Return the highest log-probability of an n-gram with each context of this length."""
        if (key := (length, self.device, self.dtype)) not in self._best:
            longer, count = self.orders[length], len(self.orders[length - 1].keys)
            best = torch.full((count,), -torch.inf, dtype=self.dtype, device=self.device)
            contexts = longer.keys // self.config.vocab_size
            self._best[key] = best.scatter_reduce(0, contexts, longer.log_probs, "amax")
        return self._best[key]

    def find_contexts(self, states: Tensor, length: int) -> Tensor:
        """Return the numbers of the contexts of the last `length` tokens; -1: unknown."""  # (P,)
        first = states.shape[1] - length
        contexts = states[:, first]
        for n in range(2, length + 1):
            contexts = self._find(n, contexts, states[:, first + n - 1])
        return contexts

    def _find(self, n: int, contexts: Tensor, words: Tensor) -> Tensor:
        """Return the numbers of n-grams by those of their contexts; -1: unknown."""  # (P,)
        keys = self.orders[n - 1].keys
        if not len(keys):
            return torch.full_like(contexts, -1)
        wanted = contexts * self.config.vocab_size + words
        places = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        return places.where((keys[places] == wanted) & (contexts >= 0) & (words >= 0), -1)


def _aranges(counts: Tensor) -> Tensor:
    """Return 0, 1, … for each count, concatenated.

    >>> _aranges(torch.tensor([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    return torch.arange(total, device=counts.device) - (ends - counts).repeat_interleave(counts)
