"""Initial weights have the published standard deviations, and depend on seed and name alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    ModernBertConfig,
    ModernBertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

from firth.models.config import CHOICES
from firth.models.initialization import initialise
from firth.models.recurrent.packed_rnn import RecurrentLayer
from firth.models.transformer import Transformer
from tests.models.small import KINDS, T5, small

# The deviation of a normal distribution cut off at two deviations:
# sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)), with phi(2) = 0.05399 and Phi(2) = 0.97725
CUT = math.sqrt(1 - 4 * 0.0539910 / 0.9544997)
BIG: dict[str, Any] = dict(vocab_size=2000, hidden_size=128, ffn_size=320, max_positions=128)


def build(architecture: str, parts: tuple[str, ...] = ("language",), **fields: Any) -> Transformer:
    config = small(architecture, **{**BIG, **fields})
    return initialise(Transformer(config, parts), seed=1)


def std(x: Tensor) -> float:
    return float(x.detach().double().std())


def largest(x: Tensor) -> float:
    return float(x.detach().abs().max())


def test_bert_truncates_at_two_standard_deviations() -> None:
    network = build(
        "encoder",
        ("language", "pooler", "pair", "replaced", "boundary"),
        initialization="truncated",
        num_segments=2,
        head_transform=True,
    )
    assert pytest.approx(0.8796, abs=1e-4) == CUT
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:
            assert largest(parameter) <= 0.04, name
            if parameter.numel() > 20_000:
                assert std(parameter) == pytest.approx(0.02 * CUT, rel=0.01), name
    drawn = torch.cat([p.detach().flatten() for p in network.parameters() if p.dim() == 2])
    assert std(drawn) == pytest.approx(0.02 * CUT, rel=0.005)
    assert float(drawn.mean()) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("layers", [1, 6])
def test_gpt2_scales_residual_projections(layers: int) -> None:
    network = build("decoder", initialization="scaled", num_layers=layers, norm_position="pre")
    for block in network.stack.blocks:
        for shrunk in (block.attention.output.weight, block.feed_forward.down.weight):
            assert std(shrunk) == pytest.approx(0.02 / math.sqrt(2 * layers), rel=0.03)
        for usual in (block.attention.qkv.weight, block.feed_forward.up.weight):
            assert std(usual) == pytest.approx(0.02, rel=0.02)
    assert std(network.tokens.weight) == pytest.approx(0.02, rel=0.01)


@pytest.mark.parametrize("gated", [False, True])
def test_t5_matches_transformers(gated: bool) -> None:
    fields = dict(
        hidden_size=256, num_heads=4, head_dim=48, ffn_size=512, vocab_size=1000, num_layers=1
    )
    form = dict(T5, relative_buckets=64, gated=gated, tie_embeddings=not gated)
    ours = build("encoder-decoder", **fields, **form, initialization="fan-in", init_std=1.0)
    torch.manual_seed(1)
    size = dict(vocab_size=1000, d_model=256, d_kv=48, d_ff=512, num_layers=1, num_heads=4)
    kind = dict(feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated)
    config = T5Config(**size, **kind, relative_attention_num_buckets=64)
    theirs = T5ForConditionalGeneration(config)
    block, reference = ours.stack.blocks[0], theirs.decoder.block[0].layer
    attention, cross = reference[0].SelfAttention, reference[1].EncDecAttention
    feed = reference[2].DenseReluDense
    q, k, v = block.attention.qkv.weight.split(block.attention.qkv.splits)
    cross_k, cross_v = block.cross.kv.weight.split(block.cross.kv.splits)
    ups = block.feed_forward.up.weight.split(block.feed_forward.up.splits)
    pairs = {
        "q": (q, attention.q.weight),
        "k": (k, attention.k.weight),
        "v": (v, attention.v.weight),
        "o": (block.attention.output.weight, attention.o.weight),
        "cross q": (block.cross.query.weight, cross.q.weight),
        "cross k": (cross_k, cross.k.weight),
        "cross v": (cross_v, cross.v.weight),
        "cross o": (block.cross.output.weight, cross.o.weight),
        "wi": (ups[0], feed.wi_0.weight if gated else feed.wi.weight),
        "wo": (block.feed_forward.down.weight, feed.wo.weight),
        "embedding": (ours.tokens.weight, theirs.shared.weight),
    }
    if gated:
        pairs["wi_1"] = ups[1], feed.wi_1.weight
        pairs["output"] = ours.heads["language"].weight, theirs.lm_head.weight
    for name, (mine, reference_weight) in pairs.items():
        assert mine.shape == reference_weight.shape, name
        assert std(mine) == pytest.approx(std(reference_weight), rel=0.03), name
    # a table of 256 numbers measures only to some 5 %: the formula, d_model ** -0.5, instead
    for stack in (ours.encoder, ours.decoder):
        assert std(stack.relative.weight) == pytest.approx(256**-0.5, rel=0.15)
    bias = attention.relative_attention_bias.weight
    assert std(bias) == pytest.approx(256**-0.5, rel=0.15)


def test_modernbert_matches_transformers() -> None:
    form = dict(gated=True, position_embedding="rotary", norm_position="pre", first_norm=False)
    form |= dict(bias=False, norm_bias=False, head_transform=True, transform_bias=False)
    form |= dict(initialization="scaled-truncated", head_bias="trained")
    ours = build("encoder", hidden_size=192, num_layers=3, **form)
    torch.manual_seed(1)
    size = dict(vocab_size=2000, hidden_size=192, intermediate_size=320, num_hidden_layers=3)
    ids = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    theirs = ModernBertForMaskedLM(ModernBertConfig(**size, **ids, num_attention_heads=4))
    block, reference = ours.stack.blocks[1], theirs.model.layers[1]
    pairs = {
        "qkv": (block.attention.qkv.weight, reference.attn.Wqkv.weight),
        "output": (block.attention.output.weight, reference.attn.Wo.weight),
        "up": (block.feed_forward.up.weight, reference.mlp.Wi.weight),
        "down": (block.feed_forward.down.weight, reference.mlp.Wo.weight),
        "transform": (ours.heads["language"].transform.weight, theirs.head.dense.weight),
        "tokens": (ours.tokens.weight, theirs.model.embeddings.tok_embeddings.weight),
    }
    for name, (mine, reference_weight) in pairs.items():
        assert mine.shape == reference_weight.shape, name
        assert std(mine) == pytest.approx(std(reference_weight), rel=0.03), name
        assert largest(mine) == pytest.approx(largest(reference_weight), rel=0.02), name


def test_the_original_transformer_is_uniform_between_xaviers_bounds() -> None:
    network = build("encoder-decoder", initialization="xavier", embedding_scale=True)
    block = network.stack.blocks[0]
    q, _, _ = block.attention.qkv.weight.split(block.attention.qkv.splits)
    # Glorot and Bengio 2010: sqrt(6 / (inputs + outputs))
    for matrix, inputs, outputs in (
        (q, 128, 128),
        (block.attention.output.weight, 128, 128),
        (block.cross.query.weight, 128, 128),
        (block.feed_forward.up.weight, 128, 320),
        (block.feed_forward.down.weight, 320, 128),
    ):
        bound = math.sqrt(6 / (inputs + outputs))
        assert bound * 0.999 < largest(matrix) <= bound
        assert std(matrix) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert std(network.tokens.weight) == pytest.approx(128**-0.5, rel=0.01)


@pytest.mark.parametrize("kind", CHOICES["initialization"])
def test_norms_are_one_and_biases_zero(kind: str) -> None:
    heads = ("language", "pooler", "pair", "replaced", "boundary")
    form = dict(relative_attention="disentangled", position_embedding="none", head_transform=True)
    network = Transformer(small("encoder", **form, initialization=kind, head_bias="trained"), heads)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(float("nan"))
    initialise(network, seed=1)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name
        else:
            assert parameter.isfinite().all(), name
            assert std(parameter) > 0, name


def test_gemma_norms_are_zero() -> None:
    network = build("decoder", ("language", "boundary"), norm="rms-plus-one", norm_position="both")
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    expected = x / x.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(network.stack.final_norm(x), expected)
    assert not network.stack.final_norm.weight.any()
    # its boundary head has common norms
    assert (network.heads["boundary"].first_norm.weight == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_weights_and_another_does_not(kind: str) -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed + 100)  # has no effect
        return initialise(Transformer(KINDS[kind], ["language"]), seed).state_dict()

    one, again, other = weights(1), weights(1), weights(2)
    for name, weight in one.items():
        assert torch.equal(weight, again[name]), name
        if weight.dim() > 1:
            assert not torch.equal(weight, other[name]), name


def test_no_two_matrices_are_equal() -> None:
    network = initialise(Transformer(KINDS["bart"], ["language"]), seed=1)
    first = [p.detach().flatten()[0].item() for p in network.parameters() if p.dim() > 1]
    assert len(set(first)) == len(first)


def test_more_heads_or_layers_do_not_change_the_others() -> None:
    def weights(heads: list[str], layers: int) -> dict[str, Tensor]:
        config = small("encoder", num_layers=layers)
        return initialise(Transformer(config, heads), seed=1).state_dict()

    few = weights(["language"], 2)
    for many in (weights(["replaced", "language", "boundary"], 2), weights(["language"], 3)):
        assert len(many) > len(few)
        for name, weight in few.items():
            assert torch.equal(weight, many[name]), name


def test_recurrent_layers_have_a_rule_of_their_own() -> None:
    """U(-1/sqrt(H), 1/sqrt(H)); the forget gate, the second of an LSTM, has a bias of 1."""
    network = Transformer(small("decoder"), ["language"])
    network.heads["lstm"] = RecurrentLayer(8, 64)
    rnn = initialise(network, seed=0).heads["lstm"].rnn
    assert 0.9 / 8 < rnn.weight_hh_l0.abs().max() <= 1 / 8
    assert rnn.weight_hh_l0.var().item() == pytest.approx(1 / 64 / 3, rel=0.05)
    gates = rnn.bias_ih_l0.unflatten(0, (4, 64))
    assert gates.mean(1).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert not rnn.bias_hh_l0.any()
