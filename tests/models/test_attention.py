"""Backends compute what the reference formula computes; positions match transformers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Attention

from firth.models import attention
from firth.models.attention import (
    AttentionParams,
    PaddedAttention,
    PositionBias,
    ScoreTerms,
    cross_attention_backend,
    has_flash_attention_op,
    has_varlen_kernels,
)
from firth.models.masks import Mask
from firth.models.positions import (
    DisentangledBias,
    RelativeBias,
    Rotary,
    apply_rotary,
    rotary_angles,
    sinusoidal_embedding,
)
from firth.models.reference import dense_attention
from tests.models.small import KINDS, build

LENGTHS = [5, 9, 1, 8, 3]
MASKS = {
    "full": Mask(LENGTHS),
    "causal": Mask.causal(LENGTHS),
    "prefix": Mask(LENGTHS, prefix=[2, 9, 0, 4, 0]),
    "even": Mask([6, 6]),
}
HEADS, WIDTH, SCALE = 4, 6, 0.3


def expected_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, added: Tensor | None = None
) -> Tensor:
    """The reference over the whole batch, with `added` (H, N, N) to the scores."""
    scores = torch.zeros(1, 1, 1, dtype=q.dtype) if added is None else added
    return dense_attention(q, k, v, scores.masked_fill(~visible, -torch.inf), SCALE)


def qkv(tokens: int, kv_heads: int = HEADS, memory: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)

    def draw(count: int, heads: int) -> Tensor:
        return torch.randn(count, heads, WIDTH, generator=generator, dtype=torch.float64)

    memory = memory or tokens
    return draw(tokens, HEADS), draw(memory, kv_heads), draw(memory, kv_heads)


def attend(
    mask: Mask,
    parts: tuple[Tensor, Tensor, Tensor],
    window: int = 0,
    bias: PositionBias | None = None,
    terms: ScoreTerms | None = None,
    dense: bool = False,
) -> Tensor:
    backend = PaddedAttention(mask, window, bias, dense)
    return backend.attend(*parts, AttentionParams(SCALE, score_terms=terms))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("pattern", MASKS)
def test_padded_attention_equals_the_reference(
    pattern: str, kv_heads: int, window: int, dense: bool
) -> None:
    mask = MASKS[pattern]
    parts = qkv(mask.num_tokens, kv_heads)
    out = attend(mask, parts, window, dense=dense)
    torch.testing.assert_close(
        out, expected_attention(*parts, mask.visible(window)), rtol=0, atol=1e-12
    )


def position_bias(queries: Tensor, keys: Tensor) -> Tensor:
    slopes = torch.tensor([0.1, 0.2, 0.4, 0.8], dtype=torch.float64)[:, None, None]
    return slopes * (keys.unsqueeze(-2) - queries.unsqueeze(-1))


def score_terms(q: Tensor, k: Tensor) -> Tensor:
    return torch.sin(q @ k.transpose(-1, -2))


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("pattern", MASKS)
def test_biases_and_score_terms_are_added_to_the_scores(pattern: str, window: int) -> None:
    mask = MASKS[pattern]
    parts = qkv(mask.num_tokens)
    bias = position_bias(mask.positions, mask.positions)
    terms = score_terms(parts[0].transpose(0, 1), parts[1].transpose(0, 1))  # (H, N, N)
    for added, options in ((bias, {"bias": position_bias}), (terms, {"terms": score_terms})):
        expected = expected_attention(*parts, mask.visible(window), added)
        out = attend(mask, parts, window, **options)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("memory", [[4, 2, 7, 1, 3], [3, 3, 3, 3, 3]])
def test_cross_attention_equals_the_reference(memory: list[int]) -> None:
    queries, keys = Mask.causal(LENGTHS), Mask(memory)
    parts = qkv(queries.num_tokens, kv_heads=2, memory=keys.num_tokens)
    backend = cross_attention_backend(queries, keys, varlen=False)
    out = backend.attend(*parts, AttentionParams(SCALE))
    expected = expected_attention(*parts, queries.sequence_ids[:, None] == keys.sequence_ids)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_an_empty_batch() -> None:
    assert attend(Mask([]), qkv(0)).shape == (0, HEADS, WIDTH)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (32, 20), (8, 12), (16, 1000)])
def test_t5s_buckets_are_those_of_transformers(
    buckets: int, distance: int, bidirectional: bool
) -> None:
    relative = torch.arange(-2000, 2001)
    expected = T5Attention._relative_position_bucket(relative, bidirectional, buckets, distance)
    ours = RelativeBias(buckets, distance, heads=1, bidirectional=bidirectional).bucket(relative)
    assert torch.equal(ours, expected)


def test_t5s_bias_reads_its_table_by_bucket_and_head() -> None:
    bias = RelativeBias(buckets=8, max_distance=12, heads=2, bidirectional=True)
    with torch.no_grad():
        bias.weight.copy_(torch.arange(16.0).view(8, 2))
    places = torch.arange(3)
    # bucket 0: itself; 1, 2: one and two to the left; 5, 6: to the right
    assert bias(places, places).tolist() == [
        [[0, 10, 12], [2, 0, 10], [4, 2, 0]],
        [[1, 11, 13], [3, 1, 11], [5, 3, 1]],
    ]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize(("buckets", "distance"), [(256, 512), (4, 10), (32, 128)])
def test_debertas_buckets_are_those_of_transformers(buckets: int, distance: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    relative = torch.arange(1 - distance, distance)
    expected = make_log_bucket_position(relative, buckets, distance)
    ours = DisentangledBias(8, buckets, distance, eps=1e-7).bucket(relative)
    assert torch.equal(ours, expected.long())


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    generator = torch.Generator().manual_seed(4)
    q, k = torch.randn(2, 8, generator=generator)

    def score(query: int, key: int) -> float:
        angles = rotary_angles(torch.tensor([query, key]), Rotary(8, 10_000.0))
        rotated = apply_rotary(torch.stack([q, k])[:, None], angles)[:, 0]
        return float(rotated[0] @ rotated[1])

    for place in (1, 10, 100):
        assert score(place + 3, place) == pytest.approx(score(3, 0), abs=1e-4)
    assert score(0, 0) == pytest.approx(float(q @ k), abs=1e-5)
    assert abs(score(3, 0) - score(0, 3)) > 0.01


def test_the_first_pair_rotates_by_one_radian_per_position() -> None:
    # the pair is (0, D / 2) and its frequency theta ** 0
    x = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(1, 1, 4)
    rotated = apply_rotary(x, rotary_angles(torch.tensor([2]), Rotary(4, 50.0))).flatten()
    assert rotated.tolist() == pytest.approx([math.cos(2), 0.0, math.sin(2), 0.0], abs=1e-6)
    # and that of the second pair theta ** (-2 / 4)
    x = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(1, 1, 4)
    rotated = apply_rotary(x, rotary_angles(torch.tensor([2]), Rotary(4, 25.0))).flatten()
    assert rotated.tolist() == pytest.approx([0.0, math.cos(0.4), 0.0, math.sin(0.4)], abs=1e-6)


def test_rotary_keeps_double_precision() -> None:
    x = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    still = rotary_angles(torch.zeros(3, dtype=torch.long), Rotary(8, 10_000.0))
    assert torch.equal(apply_rotary(x, still), x)


def test_sinusoids_are_those_of_the_paper() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d)), PE(pos, 2i + 1) = cos of the same."""
    table = sinusoidal_embedding(torch.arange(20), 16)
    assert float(table[7, 4]) == pytest.approx(math.sin(7 / 10_000 ** (4 / 16)), abs=1e-6)
    assert float(table[13, 11]) == pytest.approx(math.cos(13 / 10_000 ** (10 / 16)), abs=1e-6)


@pytest.mark.parametrize(("width", "fits"), [(64, True), (256, True), (12, False), (264, False)])
def test_varlen_kernels_need_supported_head_dims(
    width: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    has_flash_attention_op.cache_clear()
    assert has_varlen_kernels(torch.device("cuda"), width) is fits
    assert not has_varlen_kernels(torch.device("cpu"), width)
    has_flash_attention_op.cache_clear()
    monkeypatch.setattr(attention, "FLASH_ARGUMENTS", ["query", "of another version"])
    assert not has_varlen_kernels(torch.device("cuda"), width)
    has_flash_attention_op.cache_clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_attention_of_equal_lengths_is_one_graph() -> None:
    def attend(x: Tensor) -> Tensor:
        return attention._attend_rows(x, x, x, None, AttentionParams(0.5))

    x = torch.randn(2, 3, 1, 4)  # (G, L, H, D)
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), attend(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_blocks_run_eagerly_in_eval_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are compiled for training; the numbers are the same."""
    compiled: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        compiled.append(graph.code)
        return graph.forward

    compile_module = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **more: compile_module(self, backend=backend, **more)
    )
    network, mask, tokens = build(KINDS["bert"]).eval(), Mask([3, 2]), torch.arange(1, 6)
    before = network(tokens, mask)
    network.stack.compile_blocks()
    assert torch.equal(network(tokens, mask), before)
    in_eval_mode = len(compiled)  # the embedding
    network.train()(tokens, mask)
    assert len(compiled) > in_eval_mode
    assert not any("matmul" in code or "linear" in code for code in compiled[:in_eval_mode])
