"""A network that can learn learns ten examples by heart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from firth.models.initial import initialise
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from tests.models.small import DECODERS, ENCODERS, T5, VOCABULARY, small

EXAMPLES, LENGTH, HIDDEN = 10, 12, 1  # HIDDEN: the token that stands for what is hidden
MOST = 400


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small lose more by sharing their work than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def texts() -> Tensor:
    """Ten sequences of random tokens, each with a first token of its own."""
    generator = torch.Generator().manual_seed(8)
    rows = torch.randint(20, VOCABULARY, (EXAMPLES, LENGTH), generator=generator)
    rows[:, 0] = torch.arange(EXAMPLES) + 5
    return rows


def steps_to_learn(network: Transformer, loss: Callable[[], Tensor], most: int = MOST) -> int:
    """How many steps of AdamW bring the loss below 0.05."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=0.0)
    for step in range(most):
        value = loss()
        if value.item() < 0.05:
            return step
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return most


def test_an_encoder_learns_what_is_hidden() -> None:
    network = initialise(Transformer(ENCODERS["bert"], ["language"]), seed=1)
    rows = texts()
    hidden = torch.rand(rows.shape, generator=torch.Generator().manual_seed(9)) < 0.25
    hidden[:, 0] = False
    inputs = rows.masked_fill(hidden, HIDDEN).flatten()
    positions = hidden.flatten().nonzero().flatten()
    mask = Mask([LENGTH] * EXAMPLES)

    def loss() -> Tensor:
        logits = network.logits(network(inputs, mask)[positions])
        return cross_entropy(logits, rows.flatten()[positions])

    assert len(positions) > 20
    assert 5 < steps_to_learn(network, loss) < MOST


def test_a_decoder_learns_what_comes_next() -> None:
    network = initialise(Transformer(DECODERS["llama"], ["language"]), seed=1)
    rows = texts()
    mask = Mask.causal([LENGTH - 1] * EXAMPLES)

    def loss() -> Tensor:
        logits = network.logits(network(rows[:, :-1].flatten(), mask))
        return cross_entropy(logits, rows[:, 1:].flatten())

    assert 5 < steps_to_learn(network, loss) < MOST


def test_an_encoder_and_decoder_learn_what_belongs_to_a_source() -> None:
    config = small("encoder-decoder", **T5, initialisation="fan-in", spread=1.0)
    network = initialise(Transformer(config, ["language"]), seed=1)
    rows, start = texts(), torch.full((EXAMPLES, 1), 2)
    # the target, 8 tokens long, begins the same everywhere: only the source tells it
    sources, targets = rows[:, :4], rows[:, 4:]
    memory_mask, mask = Mask([4] * EXAMPLES), Mask.causal([8] * EXAMPLES)
    inputs = torch.cat([start, targets[:, :-1]], dim=1)

    def loss() -> Tensor:
        memory = network.encode(sources.flatten(), memory_mask)
        hidden = network(inputs.flatten(), mask, memory=memory, memory_mask=memory_mask)
        return cross_entropy(network.logits(hidden), targets.flatten())

    assert 5 < steps_to_learn(network, loss) < MOST


def test_without_seeing_its_source_a_decoder_cannot_learn_it() -> None:
    """The other side of the tests above: what cannot be known stays unknown."""
    network = initialise(Transformer(DECODERS["gpt2"], ["language"]), seed=1)
    inputs = torch.full((EXAMPLES, 1), 2)  # the same token everywhere
    targets = texts()[:, 0]  # ten different ones

    def loss() -> Tensor:
        hidden = network(inputs.flatten(), Mask.causal([1] * EXAMPLES))
        return cross_entropy(network.logits(hidden), targets)

    assert steps_to_learn(network, loss, most=100) == 100
    assert abs(loss().item() - torch.tensor(10.0).log().item()) < 0.05
