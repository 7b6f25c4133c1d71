"""What attention heads attend to: statistics of each head, and a name where one supports it.

    H  heads     Q  queries     K  keys

The statistics are mean attention weights on chosen tokens (Clark et al. 2019, section 3) and the
entropy of attention. A head is labelled by a pattern if most of its attention follows it, and much
more than if the head attended to all visible keys equally: the first rows of a decoder see few
tokens, and so always attend to the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from firth.tokenizers.tokenizer import Tokenizer

# What a head of each pattern attends to.
PATTERNS = {
    "previous token": "the token before",
    "next token": "the token after",
    "current token": "the token itself",
    "first token": "the first token of the text",
    "separator": "special tokens such as [SEP] and </s>, without the first token",
    "same word": "the same word elsewhere in the text, without the first token",
    "uniform": "all visible tokens equally",
}
CROSS_PATTERNS = ("first token", "separator", "same word")  # and uniform
MIN_WEIGHT = 0.5  # of a label: more than half of the attention (Clark et al. 2019, section 3.1)
MIN_RATIO = 2.0  # of a label: mean weight / the mean weight of uniform attention
MIN_ENTROPY = 0.95  # of the label `uniform`
MIN_QUERIES = 3  # of a label: tokens that could attend in this way


class HeadPattern(NamedTuple):
    """The pattern that a head follows, and the statistic that supports it."""

    name: str  # a key of PATTERNS
    value: float  # mean attention weight; of `uniform` the relative entropy


@dataclass(frozen=True)
class PatternStatistic:
    """How much the heads of a layer follow one pattern."""

    values: tuple[float, ...]  # of each head
    uniform: float  # the value of a head that attends to all visible keys equally
    num_queries: int  # tokens that could attend in this way or in another

    def supports(self, head: int, name: str) -> bool:
        """Tell whether a head is labelled by this pattern."""
        if self.num_queries < MIN_QUERIES:
            return False
        if name == "uniform":
            return self.values[head] >= MIN_ENTROPY
        return self.values[head] >= max(MIN_WEIGHT, MIN_RATIO * self.uniform)


class TokenRoles(NamedTuple):
    """What patterns need to know of the tokens of a text."""

    is_separator: Sequence[bool]  # special tokens around and between texts
    words: Sequence[str]  # each token's word in lower case; "" for punctuation and special tokens
    word_numbers: Sequence[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, ids: Sequence[int]) -> TokenRoles:
        """Look up the tokens in the vocabulary of a tokenizer."""
        vocabulary = tokenizer.vocabulary
        # a network may have more embeddings than its tokenizer has tokens
        known = np.minimum(ids, len(tokenizer) - 1)
        special, ends = vocabulary.special[known], vocabulary.ends[known]
        numbers = np.cumsum(vocabulary.begins[known] | special | np.roll(ends | special, 1))
        words = {
            number: tokenizer.decode(known[numbers == number].tolist()).strip().lower()
            for number in np.unique(numbers[~special]).tolist()
        }
        in_text = {*tokenizer.sentinel_ids, vocabulary.ids.get("mask"), tokenizer.unknown_id}
        return cls(
            is_separator=[bool(special[i]) and id not in in_text for i, id in enumerate(ids)],
            words=[
                word if any(map(str.isalnum, word := words.get(number, ""))) else ""
                for number in numbers.tolist()
            ],
            word_numbers=numbers.tolist(),
        )


Weights = Tensor | NDArray[np.float32]


def head_statistics(
    weights: Weights, queries: TokenRoles, keys: TokenRoles | None = None
) -> dict[str, PatternStatistic]:
    """Compute the statistics of all heads of one layer: weights (H, Q, K) -> by pattern.

    `keys` are the tokens of the encoder in cross-attention; by default those of `queries`. If there
    are more weights than keys, the first are those of a trained prefix or prompt. A pattern without
    a visible key (the next token in a decoder) is left out. A query counts only if it sees keys of
    the pattern and others.
    """
    values = torch.as_tensor(weights, dtype=torch.float32, device="cpu")
    visible = reduce(torch.logical_or, (head > 0 for head in values))  # (Q, K)
    num_visible = visible.sum(-1)
    found = {}
    for name, chosen in _chosen_keys(queries, keys).items():
        chosen = pad(chosen, (values.shape[-1] - chosen.shape[1], 0)) & visible
        counts = chosen.sum(-1)
        rows = (counts > 0) & (counts < num_visible)
        if rows.any():
            places = (chosen & rows[:, None]).nonzero(as_tuple=True)
            means = torch.stack([head[places].sum() for head in values]) / rows.sum()
            expected = float((counts / num_visible)[rows].mean())
            found[name] = PatternStatistic(tuple(means.tolist()), expected, int(rows.sum()))
    if (rows := num_visible > 1).any():
        entropy = torch.stack([torch.special.entr(head).sum(-1) for head in values])  # (H, Q)
        relative = (entropy[:, rows] / num_visible[rows].log()).mean(-1)
        found["uniform"] = PatternStatistic(tuple(relative.tolist()), 1.0, int(rows.sum()))
    return found


def label_heads(statistics: dict[str, PatternStatistic]) -> list[HeadPattern | None]:
    """Choose for each head the pattern with the largest value among those that label it.

    >>> previous = PatternStatistic(values=(0.9, 0.2), uniform=0.1, num_queries=8)
    >>> label_heads({"previous token": previous})
    [HeadPattern(name='previous token', value=0.9), None]
    """
    heads = range(len(next(iter(statistics.values())).values)) if statistics else ()
    labels = []
    for head in heads:
        supported = [
            HeadPattern(name, one.values[head])
            for name, one in statistics.items()
            if one.supports(head, name)
        ]
        labels.append(max(supported, key=lambda label: label.value, default=None))
    return labels


def _chosen_keys(queries: TokenRoles, keys: TokenRoles | None) -> dict[str, Tensor]:
    """Mark the keys that each pattern attends to."""  # (Q, K) without trained keys, each
    cross, keys = keys is not None, queries if keys is None else keys
    rows, columns = torch.arange(len(queries.words))[:, None], torch.arange(len(keys.words))
    separator = torch.tensor(keys.is_separator)
    everywhere = torch.ones(len(rows), 1, dtype=torch.bool)
    codes = {word: i for i, word in enumerate(dict.fromkeys(["", *queries.words, *keys.words]))}
    words, key_words = (torch.tensor([codes[w] for w in one.words]) for one in (queries, keys))
    same_word = (words[:, None] == key_words) & (key_words > 0) & (columns > 0)
    if not cross:
        numbers = torch.tensor(queries.word_numbers)
        same_word &= numbers[:, None] != numbers
    chosen = {
        "previous token": columns == rows - 1,
        "next token": columns == rows + 1,
        "current token": columns == rows,
        "first token": (columns == 0) & everywhere,
        "separator": separator & (columns > 0) & everywhere,
        "same word": same_word,
    }
    return {name: chosen[name] for name in chosen if not cross or name in CROSS_PATTERNS}
