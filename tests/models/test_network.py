"""Every layout of a batch (packed, padded, one by one) gives the same hidden states."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from firth.models.masks import Mask
from firth.models.transformer import Transformer, count_parameters
from firth.models.transformer_config import TransformerConfig
from tests.models.small import (
    DECODERS,
    ENCODERS,
    KINDS,
    LENGTHS,
    VOCABULARY,
    Sample,
    build,
    gradients,
    run,
    samples,
    small,
)


def one_at_a_time(network: Transformer, batch: list[Sample]) -> list[Tensor]:
    return [run(network, [sample])[0] for sample in batch]


def padded_by_hand(network: Transformer, batch: list[Sample]) -> list[Tensor]:
    longest = max(map(len, batch))
    rows = run(network, [sample.padded(longest) for sample in batch])
    return [row[: len(sample)] for row, sample in zip(rows, batch, strict=True)]


def backwards(network: Transformer, batch: list[Sample]) -> list[Tensor]:
    return run(network, batch[::-1])[::-1]


def by_explicit_masks(network: Transformer, batch: list[Sample]) -> list[Tensor]:
    stacks = [stack for stack in (network.encoder, network.decoder) if stack is not None]
    for stack in stacks:
        stack.dense = True
    outputs = run(network, batch)
    for stack in stacks:
        stack.dense = False
    return outputs


LAYOUTS = [one_at_a_time, padded_by_hand, backwards, by_explicit_masks]


@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_gives_the_same_values_and_gradients(kind: str) -> None:
    network, batch = build(KINDS[kind], heads=(), dtype=torch.float64), samples(kind)
    packed = run(network, batch)
    assert [len(output) for output in packed] == list(LENGTHS)
    expected = gradients(network, packed)
    assert set(expected) == {name for name, _ in network.named_parameters()}
    for layout in LAYOUTS:
        outputs = layout(network, batch)
        torch.testing.assert_close(outputs, packed, rtol=0, atol=1e-10)
        torch.testing.assert_close(gradients(network, outputs), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", DECODERS)
def test_later_tokens_do_not_change_earlier_ones(kind: str) -> None:
    network, [sample] = build(KINDS[kind]), samples(kind, [12])
    [before] = run(network, [sample])
    for position in (3, 11):
        changed = sample.tokens.clone()
        changed[position] = changed[position] % (VOCABULARY - 1) + 1
        [after] = run(network, [replace(sample, tokens=changed)])
        assert torch.equal(after[:position], before[:position])
        assert not torch.allclose(after[position], before[position])


def test_a_prefix_is_bidirectional_and_the_rest_causal() -> None:
    network = build(KINDS["prefix-gpt2"])
    [sample] = samples("prefix-gpt2", [12])
    assert sample.prefix == 6
    [before] = run(network, [sample])
    for position, first_changed in ((5, 0), (6, 6), (9, 9)):
        changed = sample.tokens.clone()
        changed[position] = changed[position] % (VOCABULARY - 1) + 1
        [after] = run(network, [replace(sample, tokens=changed)])
        same = (after == before).all(dim=-1)
        assert same.tolist() == [i < first_changed for i in range(12)]


def test_a_window_ends_where_it_says() -> None:
    """Two windowed layers with a window of 2 reach 4 positions."""
    config = replace(ENCODERS["modernbert"], windowed_layers=(0, 1))
    network, [sample] = build(config), samples("modernbert", [12])
    changed = sample.tokens.clone()
    changed[0] = changed[0] % (VOCABULARY - 1) + 1
    [before], [after] = run(network, [sample]), run(network, [replace(sample, tokens=changed)])
    assert (after == before).all(dim=-1).tolist() == [i > 4 for i in range(12)]


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_do_not_attend_to_each_other(kind: str) -> None:
    network, batch = build(KINDS[kind]), samples(kind)
    before = run(network, batch)
    changed = list(batch)
    changed[1] = replace(batch[1], tokens=batch[1].tokens.flip(0))
    if (source := batch[1].source) is not None:
        changed[1] = replace(changed[1], source=source.flip(0))
    after = run(network, changed)
    assert not torch.allclose(after[1], before[1], atol=1e-3)
    for i in set(range(len(batch))) - {1}:
        torch.testing.assert_close(after[i], before[i], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "mobilebert", "llama", "deberta", "t5", "albert"])
def test_checkpointed_activations_give_the_same_gradients_and_keep_less(kind: str) -> None:
    config = replace(KINDS[kind], dropout=0.2, attention_dropout=0.2)
    network, batch = build(config, dtype=torch.float64).train(), samples(kind)

    def step() -> tuple[dict[str, Tensor], int]:
        kept: list[int] = []

        def count(x: Tensor) -> Tensor:
            kept.append(x.numel())
            return x

        torch.manual_seed(5)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            outputs = run(network, batch)
        return gradients(network, outputs), sum(kept)

    plain, kept = step()
    for stack in network.stacks:
        stack.checkpointing = True
    again, kept_again = step()
    torch.testing.assert_close(again, plain, rtol=0, atol=1e-12)
    assert kept_again < kept / 3


GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # of rms_norm
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", ["cpu", GPU])
@torch.no_grad()
def test_half_precision_is_close(device: str, kind: str) -> None:
    network = build(replace(KINDS[kind], head_dim=16))  # a GPU's kernels need a multiple of 8
    batch = samples(kind)
    exact = torch.cat(run(network, batch))
    network.to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        rough = torch.cat(run(network, batch, device)).cpu()
    error = (rough.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 0 < float(error) < 0.05


def test_an_empty_batch() -> None:
    network = build(DECODERS["gpt2"])
    assert network(torch.empty(0, dtype=torch.long), Mask([])).shape == (0, 16)


def test_layers_collect_hidden_states() -> None:
    network = build(DECODERS["gpt2"])
    layers: list[Tensor] = []
    out = network(torch.tensor([1, 2, 3]), Mask.causal([3]), layers=layers)
    assert len(layers) == 3
    assert torch.equal(layers[-1], out)
    embedded = network.tokens.weight[1:4] + network.stack.embedding.positions.weight[:3]
    torch.testing.assert_close(layers[0], embedded)


def test_missing_segments_are_zero() -> None:
    network = build(ENCODERS["bert"])
    tokens, mask = torch.tensor([3, 4, 5]), Mask([3])
    zeros = torch.zeros(3, dtype=torch.long)
    assert torch.equal(network(tokens, mask), network(tokens, mask, segments=zeros))
    assert not torch.equal(network(tokens, mask), network(tokens, mask, segments=zeros + 1))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # tokens 40·16, positions 32·16, a norm of 2·16; in each of two blocks qkv 3·16·17, output
        # 16·17, up 24·17, down 16·25 and two norms
        (small("encoder"), 40 * 16 + 32 * 16 + 32 + 2 * (64 * 17 + 24 * 17 + 16 * 25 + 64)),
        (
            small("encoder", share_layers=True),
            40 * 16 + 32 * 16 + 32 + 64 * 17 + 24 * 17 + 16 * 25 + 64,
        ),
    ],
)
def test_parameters_are_counted_once(config: TransformerConfig, expected: int) -> None:
    assert count_parameters(Transformer(config)) == expected
