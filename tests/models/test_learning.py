"""Small models of every architecture overfit ten examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from tests.models.small import DECODERS, ENCODERS, T5, VOCABULARY, small

EXAMPLES, LENGTH, MASK_TOKEN = 10, 12, 1
MAX_STEPS = 400


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small are slower with several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def texts() -> Tensor:
    """Return ten sequences of random tokens, each with a unique first token."""
    generator = torch.Generator().manual_seed(8)
    rows = torch.randint(20, VOCABULARY, (EXAMPLES, LENGTH), generator=generator)
    rows[:, 0] = torch.arange(EXAMPLES) + 5
    return rows


def steps_to_learn(
    network: Transformer, loss: Callable[[], Tensor], max_steps: int = MAX_STEPS
) -> int:
    """Return how many steps of AdamW bring the loss below 0.05."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=0.0)
    for step in range(max_steps):
        value = loss()
        if value.item() < 0.05:
            return step
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return max_steps


def test_an_encoder_learns_masked_tokens() -> None:
    network = initialise(Transformer(ENCODERS["bert"], ["language"]), seed=1)
    rows = texts()
    hidden = torch.rand(rows.shape, generator=torch.Generator().manual_seed(9)) < 0.25
    hidden[:, 0] = False
    inputs = rows.masked_fill(hidden, MASK_TOKEN).flatten()
    positions = hidden.flatten().nonzero().flatten()
    mask = Mask([LENGTH] * EXAMPLES)

    def loss() -> Tensor:
        logits = network.logits(network(inputs, mask)[positions])
        return cross_entropy(logits, rows.flatten()[positions])

    assert len(positions) > 20
    assert 5 < steps_to_learn(network, loss) < MAX_STEPS


def test_a_decoder_learns_next_tokens() -> None:
    network = initialise(Transformer(DECODERS["llama"], ["language"]), seed=1)
    rows = texts()
    mask = Mask.causal([LENGTH - 1] * EXAMPLES)

    def loss() -> Tensor:
        logits = network.logits(network(rows[:, :-1].flatten(), mask))
        return cross_entropy(logits, rows[:, 1:].flatten())

    assert 5 < steps_to_learn(network, loss) < MAX_STEPS


@pytest.mark.slow
@pytest.mark.nightly
def test_an_encoder_decoder_learns_the_target_of_a_source() -> None:
    config = small("encoder-decoder", **T5, initialization="fan-in", init_std=1.0)
    network = initialise(Transformer(config, ["language"]), seed=1)
    rows, start = texts(), torch.full((EXAMPLES, 1), 2)
    # all targets (8 tokens) start with the same token: only the source determines the rest
    sources, targets = rows[:, :4], rows[:, 4:]
    memory_mask, mask = Mask([4] * EXAMPLES), Mask.causal([8] * EXAMPLES)
    inputs = torch.cat([start, targets[:, :-1]], dim=1)

    def loss() -> Tensor:
        memory = network.encode(sources.flatten(), memory_mask)
        hidden = network(inputs.flatten(), mask, memory=memory, memory_mask=memory_mask)
        return cross_entropy(network.logits(hidden), targets.flatten())

    assert 5 < steps_to_learn(network, loss) < MAX_STEPS
