"""Statistics of attention heads on matrices that are calculated by hand, and of a trained model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import firth
from firth.inference.attention_maps import attention_maps
from firth.inspection.head_patterns import (
    PATTERNS,
    HeadPattern,
    TokenRoles,
    head_statistics,
    label_heads,
)
from tests.models.small import LargeTensors

# <s> the dog saw the dog </s>
ROLES = TokenRoles(
    is_separator=[True, *[False] * 5, True],
    words=["", "the", "dog", "saw", "the", "dog", ""],
    word_numbers=[0, 1, 2, 3, 4, 5, 6],
)
N = 7
EYE = torch.eye(N)
UNIFORM = torch.full((N, N), 1 / N)
CAUSAL = torch.tril(torch.ones(N, N)) / torch.arange(1, N + 1)[:, None]  # uniform, triangular


def at(offset: int, weight: float = 0.8) -> Tensor:
    """Put a weight on the token at an offset, cut at the ends; spread the rest evenly."""
    keys = (torch.arange(N) + offset).clamp(0, N - 1)
    return (1 - weight) / (N - 1) * (1 - EYE[keys]) + weight * EYE[keys]


def column(position: int, weight: float = 0.8) -> Tensor:
    """Let all tokens attend to one."""
    return at(0, weight)[position].expand(N, N)


def test_values_by_hand() -> None:
    """0.8 of the weight at an offset of -1: row 0, which has no token before, is not counted."""
    statistics = head_statistics(torch.stack([at(-1), UNIFORM]), ROLES)
    assert set(statistics) == set(PATTERNS)
    previous = statistics["previous token"]
    assert previous.values == pytest.approx((0.8, 1 / 7))
    assert (previous.uniform, previous.num_queries) == (pytest.approx(1 / 7), 6)
    other = 0.2 / 6
    assert statistics["next token"].values[0] == pytest.approx(other)
    # row 0 attends to itself with 0.8, since it has no token before
    assert statistics["current token"].values[0] == pytest.approx((0.8 + 6 * other) / 7)
    assert statistics["first token"].values[0] == pytest.approx((2 * 0.8 + 5 * other) / 7)
    assert statistics["separator"].values[0] == pytest.approx(other)  # </s>, which nobody follows
    assert statistics["same word"].num_queries == 4  # the, dog, the, dog
    entropy = -(0.8 * np.log(0.8) + 0.2 * np.log(other)) / np.log(7)
    assert statistics["uniform"].values == pytest.approx((entropy, 1.0))


def test_each_pattern_labels_its_head() -> None:
    same_word = at(0)[[0, 4, 5, 3, 1, 2, 6]]  # the <-> the, dog <-> dog
    heads = [at(-1), at(1), at(0), column(0), column(6), same_word, UNIFORM, at(-1, 0.45)]
    names = [*PATTERNS, None]
    found = label_heads(head_statistics(torch.stack(heads).numpy(), ROLES))
    assert [label and label.name for label in found] == names
    assert found[0] == HeadPattern("previous token", pytest.approx(0.8))


def test_the_first_rows_of_a_decoder_are_no_evidence() -> None:
    """Uniform attention of a triangle puts (1/2 + … + 1/7) / 6 = 0.265 on the first token."""
    first = torch.tril(torch.ones(N, N)) * 0.4 / torch.arange(N).clamp(min=1)[:, None]
    first[:, 0] = 0.6  # the rest is spread over the tokens up to the query
    first[0] = EYE[0]
    statistics = head_statistics(torch.stack([CAUSAL, first]), ROLES)
    assert "next token" not in statistics
    found = statistics["first token"]
    assert found.num_queries == 6  # the first token sees itself only
    assert found.uniform == pytest.approx(sum(1 / n for n in range(2, 8)) / 6)
    assert found.values == pytest.approx((found.uniform, 0.6))
    assert label_heads(statistics) == [
        HeadPattern("uniform", pytest.approx(1.0)),
        HeadPattern("first token", pytest.approx(0.6)),
    ]
    short = TokenRoles([False] * 3, ["a", "b", "c"], [0, 1, 2])  # 0.6 is less than 2 · 0.42
    assert label_heads(head_statistics(first[None, :3, :3], short)) == [None]


def test_cross_attention_and_trained_keys() -> None:
    target = TokenRoles([False] * 4, ["", "dog", "the", "dog"], [0, 1, 2, 3])
    copying = torch.stack([UNIFORM[0], EYE[2], EYE[1], EYE[5]])
    sink = EYE[6].expand(4, N)
    weights = torch.stack([copying, sink])
    statistics = head_statistics(weights, target, ROLES)
    assert set(statistics) == {"first token", "separator", "same word", "uniform"}
    labels = [HeadPattern("same word", 1.0), HeadPattern("separator", 1.0)]
    assert label_heads(head_statistics(weights, target, ROLES)) == labels
    longer = torch.nn.functional.pad(weights, (2, 0))  # two keys of a prefix, unused
    assert label_heads(head_statistics(longer, target, ROLES)) == labels


def test_heads_are_computed_one_at_a_time() -> None:
    weights = torch.stack([at(-1), UNIFORM, EYE])
    with LargeTensors(weights.numel()) as large:
        head_statistics(weights, ROLES)
    assert set(large.found) <= {weights.data_ptr()}


def test_few_tokens_support_no_label() -> None:
    one = TokenRoles([True], [""], [0])
    assert head_statistics(torch.ones(2, 1, 1), one) == {}
    assert label_heads({}) == []
    two = TokenRoles([False, False], ["a", "b"], [0, 1])
    assert label_heads(head_statistics(torch.tensor([[[0.1, 0.9], [0.9, 0.1]]]), two)) == [None]


def test_roles_of_tokens() -> None:
    tokenizer = firth.load("stories-encoder").require_tokenizer()
    ids = tokenizer.encode("The unbelievable dog, the dog <mask>.", specials=True)
    roles = TokenRoles.of(tokenizer, [*ids, len(tokenizer) + 5])
    words = list(dict.fromkeys(zip(roles.word_numbers, roles.words, strict=True)))
    assert [word for _, word in words[:7]] == ["", "the", "unbelievable", "dog", "", "the", "dog"]
    assert roles.words.count("unbelievable") > 1
    marks = [i for i, separator in enumerate(roles.is_separator[: len(ids)]) if separator]
    assert marks == [0, len(ids) - 1]  # not the mask


def test_heads_of_a_trained_model() -> None:
    """Encoders learn heads for the tokens before and after (Clark et al. 2019, figure 1)."""
    model = firth.load("stories-encoder")
    ids = model.input_ids(
        "The dog ran to the old pond. A small cat slept under the table."
    ).tolist()
    roles = TokenRoles.of(model.require_tokenizer(), ids)
    found = {
        label.name
        for one in attention_maps(model.network, ids)
        for label in label_heads(head_statistics(one.weights, roles))
        if label is not None
    }
    assert {"previous token", "next token"} <= found
