"""BiDAF: the attention flow by hand, packed = one at a time, and what the span task needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.recurrent.bidaf import EXCLUDED, AttentionFlow, Bidaf
from firth.models.recurrent.bidaf_config import BidafConfig

SEPARATOR = 1
# Questions of two, one and no words; the last sequence has no separator.
SEQUENCES = [[3, 4, SEPARATOR, 5, 6, 7], [8, SEPARATOR, 9], [SEPARATOR, 2, 3, 4], [5, 6, 7]]


def build(**more: Any) -> Bidaf:
    sizes = dict(vocab_size=12, max_positions=32, embedding_size=6, lstm_size=4, dropout=0.0)
    roles = dict(eos_token_id=SEPARATOR, label_head="span", initialization="xavier")
    config = BidafConfig(**sizes, **roles, **{"character_filters": 0, **more})
    return initialise(Bidaf(config, ["span"]), seed=2).eval()


def logits(network: Bidaf, sequences: list[list[int]]) -> torch.Tensor:
    mask = Mask([len(row) for row in sequences])
    hidden = network(torch.tensor([id for row in sequences for id in row]), mask)
    return network.label_logits(hidden, mask.starts)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


@torch.no_grad()
def test_the_attention_flow_is_that_of_the_paper() -> None:
    """Section 2.4 in numpy, for two texts of different lengths and their questions."""
    draw = np.random.default_rng(0)
    flow = AttentionFlow(4).double()
    flow.product.copy_(torch.from_numpy(draw.normal(size=(1, 4))))
    w = np.concatenate(
        [flow.context.weight[0].numpy(), flow.question.weight[0].numpy(), flow.product[0].numpy()]
    )
    h, u = draw.normal(size=(2, 5, 4)), draw.normal(size=(2, 3, 4))
    sizes = [(5, 2), (3, 3)]
    seen = [
        torch.tensor([[i < size[k] for i in range(n)] for size in sizes])
        for k, n in ((0, 5), (1, 3))
    ]
    found = flow(torch.from_numpy(h), torch.from_numpy(u), *seen).numpy()
    for s, (length, asked) in enumerate(sizes):
        context, question = h[s, :length], u[s, :asked]
        similarity = np.array(
            [[w @ np.concatenate([a, b, a * b]) for b in question] for a in context]
        )
        summary = softmax(similarity.max(1)) @ context
        for t, a in enumerate(context):
            attended = softmax(similarity[t]) @ question
            by_hand = np.concatenate([a, attended, a * attended, a * summary])
            np.testing.assert_allclose(found[s, t], by_hand)


@torch.no_grad()
def test_packed_sequences_are_computed_as_one_at_a_time() -> None:
    network = build()
    alone = [logits(network, [sequence]) for sequence in SEQUENCES]
    torch.testing.assert_close(logits(network, SEQUENCES), torch.cat(alone))


@torch.no_grad()
def test_answers_are_in_the_context_or_at_the_first_token() -> None:
    network = build()
    possible = [(logits(network, [row]) > EXCLUDED).all(1).int().tolist() for row in SEQUENCES]
    assert possible == [[1, 0, 0, 1, 1, 1], [1, 0, 1], [1, 1, 1, 1], [1, 1, 1]]


@torch.no_grad()
def test_question_and_context_both_matter() -> None:
    network = build()
    before = logits(network, SEQUENCES[:1])
    for place in (0, 1, 4):
        other = list(SEQUENCES[0])
        other[place] = 10
        after = logits(network, [other])
        assert (before[3:] - after[3:]).abs().max() > 1e-4
