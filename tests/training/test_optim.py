"""AdamW and Muon equal those of torch, and their state is restored exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from firth.training import muon
from firth.training.muon import orthogonalise
from firth.training.optim import Optimizer, OptimizerConfig, layer_lr_scales, muon_splits
from firth.training.reference import adamw_step
from firth.utils.errors import MismatchError, UsageError

WIDTH, VOCABULARY = 16, 40


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.distances = nn.Embedding(8, 2)  # two dimensions, but no matrix for Muon
        self.qkv = nn.Linear(WIDTH, 2 * WIDTH)
        self.qkv.splits = (WIDTH, WIDTH // 2, WIDTH // 2)  # type: ignore[assignment]
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.qkv(self.norm(x)) + self.distances.weight.mean()))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(6, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.final_norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)


class Network(nn.Module):
    """A small language model with the parameter names that the optimizer uses."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = Stack()
        self.heads = nn.ModuleDict({"masked": nn.Linear(WIDTH, VOCABULARY)})
        self.unused = nn.Linear(WIDTH, 2)  # never gets a gradient

    def loss(self, step: int) -> Tensor:
        ids = torch.randint(VOCABULARY, (4, 6), generator=torch.Generator().manual_seed(step))
        scores = self.heads["masked"](self.encoder(self.tokens(ids)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), ids.roll(1).flatten())


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def train(net: Network, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        net.loss(step).backward()
        optimizer.clip_gradients()
        optimizer.step(multiplier=1 / (step + 1))
        optimizer.zero_grad()


def assert_same(ours: nn.Module, theirs: nn.Module, **tolerance: float) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerance, msg=lambda m, name=name: f"{name}: {m}")


def test_adamw_equals_torch_and_the_reference() -> None:
    """Several steps of all parameters; one has no gradient at one step, which is not counted."""
    ours, theirs = network(), network()
    config = OptimizerConfig(learning_rate=0.01, beta2=0.99, weight_decay=0.2, max_grad_norm=0.0)
    optimizer = Optimizer(ours, config)
    groups = [
        {"params": [p for p in theirs.parameters() if p.ndim >= 2], "weight_decay": 0.2},
        {"params": [p for p in theirs.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    torch_adamw = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), eps=config.eps)
    expected = {
        name: (p.detach().clone(), torch.zeros_like(p), torch.zeros_like(p), 0)
        for name, p in ours.named_parameters()
    }
    for step in range(6):
        for net in (ours, theirs):
            net.loss(step).backward()
            if step == 3:
                net.heads["masked"].bias.grad = None
        for name, p in ours.named_parameters():
            own = config if p.ndim >= 2 else replace(config, weight_decay=0.0)
            if p.grad is not None:
                weight, *moments, taken = expected[name]
                updated = adamw_step(weight, p.grad, *moments, taken + 1, own)
                expected[name] = (*updated, taken + 1)
        optimizer.step(multiplier=1.0)
        torch_adamw.step()
        optimizer.zero_grad()
        torch_adamw.zero_grad()
        assert_same(ours, theirs, rtol=1e-5, atol=1e-7)
    state = optimizer.tensors()
    for name, p in ours.named_parameters():
        found = p.detach(), state[f"adamw.exp_avg.{name}"], state[f"adamw.exp_avg_sq.{name}"]
        for mine, reference in zip(found, expected[name][:3], strict=True):
            torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-7)
    assert sorted(set(state["adamw.step"].tolist())) == [0, 5, 6]


@pytest.mark.parametrize("largest", [0.01, 100.0])
def test_clipping_equals_torch(largest: float) -> None:
    ours, theirs = network(), network()
    for net in (ours, theirs):
        net.loss(0).backward()
    norm = Optimizer(
        ours, OptimizerConfig(optimizer="muon", max_grad_norm=largest)
    ).clip_gradients()
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), largest)
    torch.testing.assert_close(norm, expected)
    assert norm.ndim == 0
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def test_the_norm_without_clipping_and_without_gradients() -> None:
    net = network()
    assert Optimizer(net, OptimizerConfig()).clip_gradients().item() == 0
    net.loss(0).backward()
    before = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    norm = Optimizer(net, OptimizerConfig(max_grad_norm=0.0)).clip_gradients()
    torch.testing.assert_close(norm, torch.cat([g.flatten() for g in before]).norm())
    after = [p.grad for p in net.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


class Alone(nn.Module):
    """One matrix in a block, with a gradient drawn for each step."""

    def __init__(self, weight: Tensor, splits: tuple[int, ...] | None = None) -> None:
        super().__init__()
        layer = nn.Linear(weight.size(1), weight.size(0), bias=False)
        layer.weight = nn.Parameter(weight.clone())
        layer.splits = splits  # type: ignore[assignment]
        self.encoder = nn.ModuleDict({"blocks": nn.ModuleList([layer])})

    @property
    def weight(self) -> nn.Parameter:
        return self.get_parameter("encoder.blocks.0.weight")


MUON = OptimizerConfig(
    optimizer="muon",
    learning_rate=9.0,
    muon_learning_rate=0.02,
    weight_decay=0.1,
    muon_momentum=0.9,
)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch 2.9")
@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32)])
def test_muon_equals_torch(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Batched products may round in another order than single ones.

    Rounding to bfloat16 changes a number by up to 2⁻⁹ of it, and there are three products in each
    of five iterations: some hundredths of an update, whose entries are about 0.2 × rate = 4e-3.
    """
    monkeypatch.setattr(muon, "_precision", lambda device: torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    ours = Alone(torch.randn(shape, generator=generator))
    optimizer = Optimizer(ours, MUON)
    weight = nn.Parameter(ours.weight.detach().clone())
    reference = torch.optim.Muon(
        [weight], lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(4):
        before = weight.detach().clone()
        ours.weight.data.copy_(before)
        ours.weight.grad = torch.randn(shape, generator=generator)
        weight.grad = ours.weight.grad.clone()
        optimizer.step(1.0)
        reference.step()
        difference = (ours.weight - weight).abs()
        assert difference.max() < 4e-4
        assert difference.norm() < 0.03 * (weight - before).norm()


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
def test_fused_matrices_are_trained_as_separate_ones(
    precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "_precision", lambda device: precision)
    generator = torch.Generator().manual_seed(0)
    weight, gradient = torch.randn(2, 48, 24, generator=generator).unbind()
    splits = (32, 8, 8)
    fused = Alone(weight, splits)
    fused.weight.grad = gradient
    Optimizer(fused, MUON).step(1.0)
    separate = []
    for part, part_gradient in zip(weight.split(splits), gradient.split(splits), strict=True):
        alone = Alone(part)
        alone.weight.grad = part_gradient
        Optimizer(alone, MUON).step(1.0)
        separate.append(alone.weight.detach())
    torch.testing.assert_close(fused.weight.detach(), torch.cat(separate), rtol=0, atol=1e-4)


def test_muon_skips_a_step_that_is_not_finite() -> None:
    """The flag is a tensor on the device; for wide, tall and fused matrices."""

    def made() -> muon.Muon:
        torch.manual_seed(0)
        shapes = {"wide": ((3, 5), (3,)), "tall": ((6, 4), (6,)), "fused": ((6, 4), (4, 2))}
        matrices = {}
        for name, (shape, splits) in shapes.items():
            weight = nn.Parameter(torch.randn(shape))
            weight.grad = torch.randn(shape)
            momentum = torch.randn(shape)
            matrices[name] = muon.MuonParameter(
                weight=weight, momentum=momentum, splits=splits, scale=1.0
            )
        return muon.Muon(matrices, momentum=0.95, weight_decay=0.1)

    untouched, skipped, taken, plain = (made() for _ in range(4))
    for matrix in skipped.matrices.values():
        assert matrix.weight.grad is not None
        matrix.weight.grad[0, 0] = float("nan")
    skipped.step(0.1, finite=torch.tensor(False))
    taken.step(0.1, finite=torch.tensor(True))
    plain.step(0.1)
    for name, before in untouched.matrices.items():
        assert torch.equal(skipped.matrices[name].weight, before.weight)
        assert torch.equal(skipped.matrices[name].momentum, before.momentum)
        assert not torch.equal(taken.matrices[name].weight, before.weight)
        torch.testing.assert_close(taken.matrices[name].weight, plain.matrices[name].weight)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
def test_newton_schulz_brings_singular_values_near_one(
    precision: torch.dtype, spread: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    bases = torch.linalg.qr(torch.randn(2, 3, 96, 32, generator=generator))[0]
    values = torch.logspace(0, -torch.log10(torch.tensor(spread)).item(), 32)
    left, right = torch.linalg.qr(bases[0, :, :32])[0], bases[1]
    wide = (left * values) @ right.mT  # (3, 32, 96)
    results = orthogonalise(wide.to(precision)).float()
    singular = torch.linalg.svdvals(results)
    assert singular.min() > 0.6
    assert singular.max() < 1.3
    # The singular vectors stay: U Vᵀ is what the result is nearest to.
    nearest = left @ right.mT
    assert ((results * nearest).sum((1, 2)) / 32 > 0.7).all()


def test_a_zero_gradient_changes_nothing() -> None:
    net = Alone(torch.ones(4, 6))
    net.weight.grad = torch.zeros(4, 6)
    Optimizer(net, OptimizerConfig(optimizer="muon", weight_decay=0.0)).step(1.0)
    assert torch.equal(net.weight, torch.ones(4, 6))


def test_muon_trains_the_matrices_of_the_blocks() -> None:
    assert muon_splits(network()) == {
        "encoder.blocks.0.qkv.weight": (16, 8, 8),
        "encoder.blocks.0.down.weight": (16,),
        "encoder.blocks.1.qkv.weight": (16, 8, 8),
        "encoder.blocks.1.down.weight": (16,),
    }


def test_frozen_parameters_are_left_alone() -> None:
    net = network()
    net.encoder.requires_grad_(False)
    for kind in ("adamw", "muon"):
        names = Optimizer(net, OptimizerConfig(optimizer=kind)).tensors()
        assert not any("encoder" in name for name in names)


def test_learning_rates_of_layers() -> None:
    """For stacks of 3 and of 2 blocks: a factor of 0.5 for each block above."""
    expected = {
        "tokens.weight": 0.125,
        "encoder.positions.weight": 0.125,
        "encoder.norm.weight": 0.125,
        "encoder.blocks.0.attention.qkv.weight": 0.25,
        "encoder.blocks.0.attention_norm.weight": 0.25,
        "encoder.blocks.1.feed_forward.up.weight": 0.5,
        "encoder.blocks.2.feed_forward.down.weight": 1.0,
        "encoder.final_norm.weight": 1.0,
        "decoder.positions.weight": 0.25,
        "decoder.blocks.0.attention.output.weight": 0.5,
        "decoder.blocks.1.attention.output.weight": 1.0,
        "decoder.final_norm.weight": 1.0,
        "heads.masked.transform.weight": 1.0,
        "pooler.dense.weight": 1.0,
    }
    assert layer_lr_scales(expected, 0.5) == expected
    assert set(layer_lr_scales(expected, 1.0).values()) == {1.0}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_step_uses_the_learning_rates_of_layers(kind: str) -> None:
    """A step is proportional to the rate, where nothing decays."""
    moves = []
    for layer_decay in (1.0, 0.5):
        net, start = network(), network()
        config = OptimizerConfig(optimizer=kind, weight_decay=0.0, layer_lr_decay=layer_decay)
        optimizer = Optimizer(net, config)
        net.loss(0).backward()
        optimizer.step(1.0)
        moves.append([a - b for a, b in zip(net.parameters(), start.parameters(), strict=True)])
    names = [name for name, _ in network().named_parameters()]
    scales = layer_lr_scales(names, 0.5)
    for name, whole, scaled in zip(names, *moves, strict=True):
        torch.testing.assert_close(scaled, whole * scales[name], rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_restored_run_continues_exactly(kind: str, tmp_path: Path) -> None:
    config = OptimizerConfig(optimizer=kind, learning_rate=0.01, layer_lr_decay=0.9)
    whole = network()
    optimizer = Optimizer(whole, config)
    train(whole, optimizer, range(4))
    save_file(optimizer.tensors(), tmp_path / "optimizer.safetensors")
    save_file(whole.state_dict(), tmp_path / "network.safetensors")
    train(whole, optimizer, range(4, 8))

    resumed = network()
    resumed.load_state_dict(load_file(tmp_path / "network.safetensors"))
    second = Optimizer(resumed, config)
    second.restore(load_file(tmp_path / "optimizer.safetensors"))
    train(resumed, second, range(4, 8))

    assert_same(resumed, whole, rtol=0, atol=0)
    for name, tensor in optimizer.tensors().items():
        assert torch.equal(second.tensors()[name], tensor), name


def test_a_state_that_does_not_fit_is_refused() -> None:
    adamw = Optimizer(network(), OptimizerConfig())
    state = adamw.tensors()
    momentum = "muon.momentum.encoder.blocks.0.down.weight"
    with pytest.raises(MismatchError, match=rf"{momentum} .*3 more"):
        Optimizer(network(), OptimizerConfig(optimizer="muon")).restore(state)
    with pytest.raises(MismatchError, match=r"adamw\.exp_avg\.else"):
        adamw.restore(state | {"adamw.exp_avg.else": torch.zeros(1)})
    with pytest.raises(MismatchError, match=r"tokens\.weight .*\(41, 16\).*\(40, 16\)"):
        adamw.restore(state | {"adamw.exp_avg.tokens.weight": torch.zeros(41, 16)})


def test_invalid_configs() -> None:
    with pytest.raises(UsageError, match=r"'sgd'.* adamw, muon"):
        OptimizerConfig(optimizer="sgd")  # type: ignore[arg-type]
    for decay in (-0.5, 0.0, 1.5):
        with pytest.raises(UsageError, match="layer_lr_decay"):
            OptimizerConfig(layer_lr_decay=decay)
