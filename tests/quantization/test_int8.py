"""Int8 matrices: within the rounding error of their scales, in a quarter of the memory, for
inference only."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from firth import Model, UsageError
from firth.adapt.apply import apply
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.models.initialization import initialise
from firth.models.layers import FusedLinear
from firth.models.masks import Mask
from firth.models.transformer import Transformer, count_parameters
from firth.models.transformer_config import TransformerConfig
from firth.quantization import int8
from firth.quantization.int8 import Int8Linear, int8_matmul, quantise, to_int8
from firth.utils.errors import MismatchError
from tests.models.small import BOTH, DECODERS, KINDS, build, run, samples

ALL = {**KINDS, "albert": replace(KINDS["albert"], head_transform=True)}
SHAPES = [(1, 5, 3), (1, 768, 300), (7, 33, 1), (16, 64, 40), (17, 64, 40), (90, 96, 50)]


needs_exact = pytest.mark.skipif(
    not int8.has_exact_int8_matmul(),
    reason="This processor overflows in products of int8, so rows are widened instead.",
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded(network: Transformer) -> Transformer:
    return to_int8(deepcopy(network))


def widened(network: Transformer) -> Transformer:
    """A plain network with the same rounded matrices, multiplied as any others."""
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(near(module.weight))
        if (matrix := network.heads["language"].weight) is not None:
            matrix.copy_(near(matrix))
        network.tokens.weight.copy_(near(network.tokens.weight))
    return network


def near(matrix: Tensor) -> Tensor:
    """The nearest multiples of a 127th of the largest number in each row, by hand."""
    step = matrix.double().abs().amax(1, keepdim=True) / 127
    return ((matrix.double() / step.clamp_min(1e-300)).round() * step).to(matrix.dtype)


# ---- one matrix ---------------------------------------------------------------------------------


def test_rows_are_rounded_by_their_own_largest_number() -> None:
    matrix = draw(50, 30) * torch.logspace(-6, 6, 50)[:, None]
    numbers, scale = quantise(matrix)
    assert numbers.dtype == torch.int8
    assert numbers.abs().amax(1).tolist() == [127] * 50
    error = numbers.double() * scale.double()[:, None] - matrix.double()
    assert (error.abs() <= scale[:, None].double() * 0.5001).all()


@needs_exact
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_as_near_as_its_steps(shape: tuple[int, int, int]) -> None:
    rows, inputs, outputs = shape
    x, matrix = draw(rows, inputs, seed=1), draw(outputs, inputs, seed=2)
    numbers, scale = quantise(matrix)
    kept = numbers.double() * scale.double()[:, None]
    found = int8_matmul(x, numbers, scale).double()
    # A number of x is off by half a fine step at most, of which there are 127 * 254 to the largest.
    step = x.double().abs().amax(1, keepdim=True) / (127 * 254)
    bound = 0.5 * step * kept.abs().sum(1) + 1e-6 * (x.double().abs() @ kept.abs().T)
    assert ((found - x.double() @ kept.T).abs() <= bound).all()
    # With the rounding of the matrix itself: half a step of each row for each number of x.
    whole = 0.5 * scale.double() * x.double().abs().sum(1, keepdim=True)
    assert ((found - x.double() @ matrix.double().T).abs() <= bound + 1.0001 * whole).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_float_fallback_computes_the_same(shape: tuple[int, int, int]) -> None:
    rows, inputs, outputs = shape
    x = draw(rows, inputs, seed=1)
    numbers, scale = quantise(draw(outputs, inputs, seed=2))
    by_hand = x.double() @ (numbers.double() * scale.double()[:, None]).T
    assert torch.allclose(int8._float_matmul(x, numbers, scale).double(), by_hand, atol=1e-4)


def test_without_torchs_private_product_floats_are_multiplied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, (numbers, scale) = draw(5, 64, seed=1), quantise(draw(40, 64, seed=2))
    expected = (x.double() @ (numbers * scale.double()[:, None]).T).float()
    assert not int8.has_fast_int8_matmul("aarch64")
    monkeypatch.delattr(torch, "_int_mm")
    int8.has_exact_int8_matmul.cache_clear()
    layer = Int8Linear(numbers, scale, None)
    int8.has_exact_int8_matmul.cache_clear()
    assert layer.matmul is int8._float_matmul
    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=2e-3)


@needs_exact
def test_what_else_is_in_a_batch_makes_no_difference() -> None:
    numbers, scale = quantise(draw(40, 64))
    x = draw(100, 64, seed=1)
    alone = torch.cat([int8_matmul(row[None], numbers, scale) for row in x])
    assert torch.equal(int8_matmul(x, numbers, scale), alone)


def test_rows_of_zeros_tiny_numbers_and_no_numbers() -> None:
    matrix = draw(4, 8)
    matrix[1] = 0.0
    numbers, scale = quantise(matrix)
    assert int8_matmul(draw(3, 8), numbers, scale)[:, 1].tolist() == [0.0] * 3
    assert int8_matmul(torch.zeros(2, 8), numbers, scale).tolist() == [[0.0] * 4] * 2
    tiny = int8_matmul(torch.full((1, 8), 1e-30), numbers, scale)
    assert torch.allclose(tiny * 1e30, int8_matmul(torch.ones(1, 8), numbers, scale), rtol=1e-3)
    for broken in (float("nan"), float("inf")):
        x = draw(2, 8)
        x[1, 3] = broken
        found = int8_matmul(x, numbers, scale)
        assert found[0].isfinite().all()
        assert not found[1][[0, 2, 3]].isfinite().any()


@needs_exact
def test_many_rows_are_multiplied_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, scale = quantise(draw(40, 64))
    layer, x = Int8Linear(numbers, scale, draw(40, seed=3), (10, 30)), draw(5, 20, 64, seed=1)
    layer.matmul = int8_matmul
    whole = layer(x)
    monkeypatch.setattr(int8, "MAX_ELEMENTS", 64 * 7)
    assert torch.equal(layer(x), whole)
    assert whole.shape == (5, 20, 40)
    assert [part.shape[-1] for part in layer.parts(x)] == [10, 30]
    assert torch.equal(quantise(draw(40, 64))[0], numbers)


@needs_exact
def test_the_widest_sums_do_not_overflow() -> None:
    widest = torch.full((1, int8.MAX_INPUTS), 2.0)
    found = int8_matmul(widest, *quantise(widest))
    assert found.item() == pytest.approx(4 * int8.MAX_INPUTS, rel=1e-4)


def test_sums_that_could_overflow_are_refused() -> None:
    with pytest.raises(MismatchError, match="cannot be quantized to int8"):
        quantise(torch.ones(1, int8.MAX_INPUTS + 1))


@pytest.mark.nightly
def test_an_old_processor_is_found_out() -> None:
    """oneDNN adds up in 16 bits where there is nothing better, and overflows."""
    code = """if True:
        import torch
        from firth.quantization.int8 import Int8Linear, quantise
        x, matrix = torch.ones(3, 64), torch.ones(9, 64)
        assert torch.allclose(Int8Linear(*quantise(matrix), None)(x), x @ matrix.T)
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"ONEDNN_MAX_CPU_ISA": "AVX2", "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# ---- networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
@torch.no_grad()
def test_a_network_is_that_of_its_rounded_matrices(kind: str) -> None:
    network = build(ALL[kind])
    small, plain = rounded(network), widened(network)
    batch = samples(kind)
    ours, theirs = run(small, batch), run(plain, batch)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=2e-3, rtol=1e-3)
    if not network.heads["language"].extends:  # whose matrix is rounded as a whole: see below
        logits = small.logits(ours[0]), plain.logits(theirs[0])
        assert torch.allclose(*logits, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("kind", ALL)
@torch.no_grad()
def test_a_network_is_near_the_unrounded_one(kind: str) -> None:
    network, batch = build(ALL[kind]), samples(kind)
    small = rounded(network)
    for one, other in zip(run(small, batch), run(network, batch), strict=True):
        ours, theirs = small.logits(one), network.logits(other)
        assert (ours - theirs).norm() < 0.1 * theirs.norm()
    assert not torch.equal(ours, theirs)


@torch.no_grad()
def test_a_language_head_with_more_than_the_table() -> None:
    network = build(KINDS["mobilebert"])
    matrix = network.heads["language"].matrix(network.tokens.weight)
    hidden = draw(6, network.config.hidden_size)
    whole = network.heads["language"].prepare(hidden) @ near(matrix).T
    assert torch.allclose(rounded(network).logits(hidden), whole, atol=1e-3)


@pytest.mark.parametrize("kind", [*DECODERS, *BOTH])
def test_greedy_with_a_cache_as_without_one(kind: str) -> None:
    network = rounded(build(KINDS[kind]))
    prompts = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 30]]
    settings = GenerationConfig(max_new_tokens=6)
    for prompt, [ours] in zip(
        prompts, generate(network, prompts, settings, eos_token_id=None), strict=True
    ):
        tokens: list[int] = []
        for _ in range(6):
            tokens.append(int(_after(network, prompt, tokens).argmax()))
        assert list(ours.tokens) == tokens


@torch.no_grad()
def _after(network: Transformer, prompt: list[int], tokens: list[int]) -> Tensor:
    given = {}
    row = [*prompt, *tokens]
    if network.config.has_encoder:
        row = [network.config.decoder_start_token_id or 0, *tokens]
        read = Mask([len(prompt)])
        given = {"memory": network.encode(torch.tensor(prompt), read), "memory_mask": read}
    hidden = network(torch.tensor(row), Mask.causal([len(row)]), **given)
    return network.logits(hidden)[-1]


@torch.no_grad()
def test_half_precision_stays_half_outside_the_matrices() -> None:
    network = build(DECODERS["llama"], dtype=torch.bfloat16)
    small = rounded(network)
    tokens, mask = torch.arange(1, 9), Mask.causal([8])
    hidden = small(tokens, mask)
    assert hidden.dtype == torch.bfloat16
    wide = build(DECODERS["llama"])
    assert (small.logits(hidden) - wide.logits(wide(tokens, mask))).abs().mean() < 0.1
    assert small.decoder.blocks[0].attention.qkv.scale.dtype == torch.float32


def test_a_quarter_of_the_memory() -> None:
    config = TransformerConfig(
        architecture="decoder",
        vocab_size=2000,
        hidden_size=128,
        num_layers=2,
        num_heads=4,
        ffn_size=512,
        max_positions=32,
    )
    network = initialise(Transformer(config, ["language"]), seed=0)
    before, count = held(network), Model(network, None).num_parameters
    assert before == 4 * count_parameters(network)
    to_int8(network)
    assert held(network) < 0.27 * before
    assert Model(network, None).num_parameters == count


def held(network: nn.Module) -> int:
    """Bytes of all tensors of a network, shared ones once."""
    tensors = [*network.parameters(), *network.buffers()]
    stores = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(store.nbytes() for store in stores.values())


def test_float_matrices_are_freed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(DECODERS["llama"])
    left = []

    def watch(matrix: Tensor) -> tuple[Tensor, Tensor]:
        plain = [one for one in network.modules() if isinstance(one, nn.Linear)]
        left.append(sum(one.weight.numel() for one in plain))
        return quantise(matrix)

    monkeypatch.setattr(int8, "quantise", watch)
    to_int8(network)
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0


def test_fused_projections_keep_their_parts() -> None:
    network = build(DECODERS["llama"])
    old = network.decoder.blocks[0].attention.qkv
    assert isinstance(old, FusedLinear)
    splits = old.splits
    assert to_int8(network).decoder.blocks[0].attention.qkv.splits == splits


@pytest.mark.parametrize("kind", ALL)
def test_as_many_parameters_as_are_not_in_matrices(kind: str) -> None:
    """A bias that is no parameter does not become one."""
    network = build(ALL[kind])
    kept = {id(one) for one in network.parameters()}
    assert {id(one) for one in to_int8(network).parameters()} <= kept


def test_an_empty_batch() -> None:
    network = rounded(build(DECODERS["gpt2"]))
    hidden = network(torch.empty(0, dtype=torch.long), Mask([]))
    assert network.logits(hidden).shape == (0, network.config.vocab_size)


# ---- what is refused ----------------------------------------------------------------------------


def test_it_is_neither_trained_nor_saved_nor_rounded_twice(tmp_path: Path) -> None:
    network = rounded(build(DECODERS["gpt2"]))
    assert not any(one.requires_grad for one in network.parameters())
    with pytest.raises(UsageError, match="cannot be trained"):
        network.train()
    assert not any(module.training for module in network.modules())
    with pytest.raises(UsageError, match="int8 weights"):
        network.state_dict()
    with pytest.raises(UsageError, match="int8 weights"):
        Model(network, None).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(UsageError, match="already"):
        to_int8(network)


def test_adapters_are_to_be_merged_first() -> None:
    network = build(DECODERS["gpt2"])
    apply(network, "lora:rank=2")
    with pytest.raises(UsageError, match="merge it"):
        to_int8(network)


def test_other_devices_are_refused() -> None:
    network = build(DECODERS["gpt2"]).to("meta")
    with pytest.raises(UsageError, match="--device cpu"):
        to_int8(network)
