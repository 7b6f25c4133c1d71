"""The original Transformer (Vaswani et al. 2017) is torch's own, weight for weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from firth.models.blocks import Block
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.positions import sinusoidal_embedding
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig

WIDTH, HEADS, INNER, LAYERS = 32, 4, 64, 3
SOURCES, TARGETS = [7, 3, 10], [5, 9, 1]


@pytest.fixture
def network() -> Transformer:
    config = TransformerConfig(
        architecture="encoder-decoder",
        vocab_size=50,
        hidden_size=WIDTH,
        num_layers=LAYERS,
        num_decoder_layers=2,
        num_heads=HEADS,
        ffn_size=INNER,
        max_positions=16,
        position_embedding="sinusoidal",
        embedding_norm=False,
        embedding_scale=True,
        norm_eps=1e-5,
        activation="relu",
        initialization="xavier",
        dropout=0.0,
        attention_dropout=0.0,
    )
    network = initialise(Transformer(config), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return network.eval()


def copied(block: Block, layer: nn.Module) -> None:
    """Copy the weights of a block to a layer of torch."""
    attention, feed_forward = block.attention, block.feed_forward
    weights = {
        "self_attn.in_proj_": attention.qkv,
        "self_attn.out_proj.": attention.output,
        "linear1.": feed_forward.up,
        "linear2.": feed_forward.down,
        "norm1.": block.attention_norm.outer,
        "norm2.": block.feed_forward_norm.outer,
    }
    state = {f"{name}{kind}": getattr(m, kind) for name, m in weights.items() for kind in KINDS}
    if block.cross is not None and block.cross_norm is not None:
        cross = block.cross
        for kind in KINDS:
            parts = [getattr(cross.query, kind), getattr(cross.kv, kind)]
            state[f"multihead_attn.in_proj_{kind}"] = torch.cat(parts)
            state[f"multihead_attn.out_proj.{kind}"] = getattr(cross.output, kind)
            state[f"norm2.{kind}"] = getattr(block.cross_norm.outer, kind)
            state[f"norm3.{kind}"] = getattr(block.feed_forward_norm.outer, kind)
    layer.load_state_dict(state)


KINDS = ("weight", "bias")
SHAPE = dict(d_model=WIDTH, nhead=HEADS, dim_feedforward=INNER, dropout=0.0, batch_first=True)


def reference(network: Transformer) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """Build torch's stacks with the same weights."""
    encoder_layer, decoder_layer = (
        nn.TransformerEncoderLayer(**SHAPE),
        nn.TransformerDecoderLayer(**SHAPE),
    )
    encoder = nn.TransformerEncoder(encoder_layer, LAYERS, enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, 2)
    assert network.encoder is not None
    assert network.decoder is not None
    for ours, theirs in ((network.encoder, encoder), (network.decoder, decoder)):
        for block, layer in zip(ours.blocks, theirs.layers, strict=True):
            assert isinstance(block, Block)
            copied(block, layer)
    return encoder.eval(), decoder.eval()


def rows(network: Transformer, tokens: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Return embedded tokens as padded rows, and the padding mask."""
    embedded = network.tokens.weight[tokens] * WIDTH**0.5
    parts = [
        part + sinusoidal_embedding(torch.arange(len(part)), WIDTH)
        for part in embedded.split(lengths)
    ]
    padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return nn.utils.rnn.pad_sequence(parts, batch_first=True), padding


@torch.no_grad()
def test_encoder_and_decoder_give_what_torchs_give(network: Transformer) -> None:
    encoder, decoder = reference(network)
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(50, (sum(SOURCES),), generator=generator)
    target = torch.randint(50, (sum(TARGETS),), generator=generator)

    memory_mask = Mask(SOURCES)
    memory = network.encode(source, memory_mask)
    ours = network(target, Mask.causal(TARGETS), memory=memory, memory_mask=memory_mask)

    source_rows, source_padding = rows(network, source, SOURCES)
    target_rows, target_padding = rows(network, target, TARGETS)
    their_memory = encoder(source_rows, src_key_padding_mask=source_padding)
    theirs = decoder(
        target_rows,
        their_memory,
        tgt_mask=torch.ones(max(TARGETS), max(TARGETS), dtype=torch.bool).triu(1),
        tgt_key_padding_mask=target_padding,
        memory_key_padding_mask=source_padding,
    )
    torch.testing.assert_close(memory, their_memory[~source_padding], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours, theirs[~target_padding], rtol=0, atol=1e-5)
