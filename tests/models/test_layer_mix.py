"""ELMo's weighting of layers, and label heads that read one layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from firth.models.initialization import initialise
from firth.models.layer_mix import LayerMix
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.training.optim import Optimizer, OptimizerConfig
from firth.utils.errors import InputError
from tests.models.small import PRE, small

LABELS: dict[str, Any] = dict(label_head="classify", labels=("x", "y"))


@torch.no_grad()
def test_a_mix_by_hand() -> None:
    """Softmax weights of 1/6, 2/6 and 3/6, times a gamma of 2."""
    mix = LayerMix(small("encoder"))
    mix.weights.copy_(torch.tensor([1.0, 2.0, 3.0]).log())
    mix.gamma.fill_(2.0)
    layers = [torch.tensor([[6.0, 0.0]]), torch.tensor([[0.0, 3.0]]), torch.tensor([[2.0, 2.0]])]
    torch.testing.assert_close(mix(layers), torch.tensor([[2 + 2.0, 2 + 2.0]]))
    values = mix.values()
    assert values["layer_weights"] == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert values["gamma"] == 2.0
    for fact in ("embeddings 16.7%", "layer 2 50.0%", "gamma 2"):
        assert fact in mix.summary()


@torch.no_grad()
def test_layers_without_a_norm_are_normalized_before_they_are_mixed() -> None:
    mix = LayerMix(small("decoder", **PRE, num_layers=1))
    large, little = torch.tensor([[300.0, 100.0]]), torch.tensor([[0.1, 0.3]])
    torch.testing.assert_close(mix([large, large]), torch.tensor([[1.0, -1.0]]))
    torch.testing.assert_close(mix([large, little]), torch.zeros(1, 2), atol=1e-3, rtol=0)


def test_scalars_are_learned_as_fast_in_a_wide_network() -> None:
    wide = nn.ModuleDict({"mix": LayerMix(small("encoder", hidden_size=768))})
    optimizer = Optimizer(wide, OptimizerConfig(learning_rate=1e-3))
    mix = wide["mix"]
    mix.weights.grad, mix.gamma.grad = torch.ones(3), torch.ones(1)
    optimizer.step(multiplier=1.0)
    assert mix.gamma.item() == pytest.approx(1 - 16e-3)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["encoder", "decoder", "encoder-decoder"])
def test_the_layer_that_a_label_head_reads(architecture: str) -> None:
    """Equal to that of all layers; the blocks above it do not run."""
    model, tokens = initialise(Transformer(small(architecture)), seed=0).eval(), torch.arange(1, 7)
    mask = (Mask.causal if architecture == "decoder" else Mask)([4, 2])
    layers: list[torch.Tensor] = []
    model.encode(tokens, mask, layers=layers)
    for number, layer in enumerate(layers[:-1]):
        model.config = replace(model.config, **LABELS, label_input_layer=number)
        model.stacks[0].blocks[number].forward = None  # type: ignore[assignment]
        assert torch.equal(model.encode_for_labels(tokens, mask), layer)
        del model.stacks[0].blocks[number].forward
    model.config = replace(model.config, label_input_layer=None)
    assert torch.equal(model.encode_for_labels(tokens, mask), layers[-1])
    model.config, model.heads["mix"] = (
        replace(model.config, label_layer_mix=True),
        LayerMix(model.config),
    )
    expected = torch.stack(layers).mean(0)
    torch.testing.assert_close(model.encode_for_labels(tokens, mask), expected)


def test_a_layer_that_does_not_exist() -> None:
    with pytest.raises(InputError, match=r"label_input_layer .* 0 to 2, not 3"):
        small("encoder", **LABELS, label_input_layer=3)
