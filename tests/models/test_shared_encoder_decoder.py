"""An encoder-decoder whose two sides share their self-attention and feed-forward layers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from torch import Tensor

import firth
from firth.formats.huggingface.directory import read_network, write_network
from firth.jobs.exporting import export
from firth.model import Model
from firth.models.encoder_decoder import separate_weights
from firth.models.masks import Mask
from firth.models.presets import preset
from firth.models.transformer import Transformer, count_parameters
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import InputError
from tests.models.small import BOTH, KINDS, build, small

SHARED = BOTH["shared"]
SOURCE, TARGET = torch.tensor([5, 7, 9, 11]), torch.tensor([3, 8, 6])


def logits(network: Transformer) -> Tensor:
    mask = Mask([len(SOURCE)])
    memory = network.encode(SOURCE, mask)
    hidden = network(TARGET, Mask.causal([len(TARGET)]), memory=memory, memory_mask=mask)
    return network.logits(hidden)


def tied_t5(config: TransformerConfig) -> transformers.T5ForConditionalGeneration:
    """Build T5 of transformers whose decoder uses the encoder's modules."""
    theirs = transformers.T5Config(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        d_kv=config.head_dim,
        d_ff=config.ffn_size,
        relative_attention_num_buckets=config.relative_buckets,
    )
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(theirs)
    for ours, other in zip(model.decoder.block, model.encoder.block, strict=True):
        for name in ("q", "k", "v", "o"):
            setattr(ours.layer[0].SelfAttention, name, getattr(other.layer[0].SelfAttention, name))
        ours.layer[0].layer_norm = other.layer[0].layer_norm
        ours.layer[2] = other.layer[1]
    return model


@pytest.mark.parametrize("config", [SHARED, preset("t5-base").config], ids=["small", "t5-base"])
def test_parameters_are_those_of_transformers_and_of_a_hand_count(
    config: TransformerConfig,
) -> None:
    with torch.device("meta"):
        both = Transformer(replace(config, share_encoder_decoder=False), ["language"])
        shared = Transformer(replace(config, share_encoder_decoder=True), ["language"])
    assert count_parameters(shared) == tied_t5(config).num_parameters()
    inner, hidden = config.num_heads * config.head_dim, config.hidden_size
    attention, norm = 4 * hidden * inner, hidden
    block = attention + norm + 2 * hidden * config.ffn_size + norm
    others = config.vocab_size * hidden + 2 * config.relative_buckets * config.num_heads + 2 * norm
    cross = config.num_layers * (attention + norm)
    side = config.num_layers * block
    # Without embeddings and cross-attention: P parameters instead of 2P (Raffel et al. 2020).
    assert count_parameters(shared) == side + cross + others
    assert count_parameters(both) == 2 * side + cross + others


def test_both_sides_have_the_same_weights_and_gradients() -> None:
    network = build(SHARED, dtype=torch.float64)
    separate = separate_weights(network)
    torch.testing.assert_close(logits(network), logits(separate), rtol=0, atol=0)
    for one in (network, separate):
        logits(one).square().sum().backward()
    ours, theirs = dict(network.named_parameters()), dict(separate.named_parameters())
    for name, parameter in theirs.items():
        if name.startswith("encoder.blocks."):
            other = theirs[name.replace("encoder", "decoder", 1)]
            assert parameter.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(ours[name].grad, parameter.grad + other.grad)
        elif name in ours:
            torch.testing.assert_close(ours[name].grad, parameter.grad)


def test_saved_weights_are_stored_once_and_loaded(tmp_path: Path) -> None:
    network = build(SHARED)
    assert write_network(network, tmp_path) == "firth"
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = list(file.keys())
        stored = sum(file.get_tensor(name).numel() for name in names)
    assert stored == count_parameters(network)
    own = {name.split(".")[3] for name in names if name.startswith("decoder.blocks.")}
    assert own == {"cross", "cross_norm"}
    again = read_network(tmp_path)
    assert again.config == SHARED
    with torch.no_grad():
        assert torch.equal(logits(again), logits(network))
        copied = deepcopy(network)
        copied.encoder.blocks[0].attention.qkv.weight.zero_()  # type: ignore[union-attr]
        assert not torch.equal(logits(copied), logits(network))
        separate = separate_weights(copied)
        assert torch.equal(logits(copied), logits(separate))  # the copy shares its own weights


def test_an_export_stores_the_weights_of_each_side(tmp_path: Path) -> None:
    sizes = dict(vocab_size=40, hidden_size=16, num_heads=2, num_kv_heads=2, head_dim=8)
    layers = dict(ffn_size=24, num_layers=2, num_decoder_layers=2)
    small_t5 = replace(preset("t5-small").config, **sizes, **layers)  # type: ignore[arg-type]
    network = build(replace(small_t5, share_encoder_decoder=True))
    with torch.no_grad():
        expected = logits(network)
        export(Model(network, None), tmp_path / "hf")
        again = firth.load(tmp_path / "hf").network
        torch.testing.assert_close(logits(again), expected)
        theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
        reference = theirs(input_ids=SOURCE[None], decoder_input_ids=TARGET[None]).logits[0]
    torch.testing.assert_close(reference, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"architecture": "decoder"}, "decoder"),
        ({"architecture": "encoder-decoder", "num_decoder_layers": 3}, "num_decoder_layers"),
        ({"architecture": "encoder-decoder", "bottleneck_size": 8}, "bottleneck_size"),
        ({"architecture": "encoder-decoder", "encoder": KINDS["bert"]}, "encoder"),
    ],
)
def test_sides_that_cannot_share(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        small(**{**fields, "share_encoder_decoder": True})  # type: ignore[arg-type]
