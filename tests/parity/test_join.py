"""A joined model computes what `transformers.EncoderDecoderModel` computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from firth.formats.huggingface.directory import read_network
from firth.models.encoder_decoder import join
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from tests.parity.reference_models import bert

SIZE = 32  # transformers projects the encoder's output if hidden sizes differ; ours does not
BERT = transformers.BertConfig(**bert() | dict(hidden_size=SIZE))
GPT2 = transformers.GPT2Config(
    **dict(vocab_size=50, n_embd=SIZE, n_layer=2, n_head=2, n_positions=20),
    **dict(bos_token_id=1, eos_token_id=2, add_cross_attention=True),
)
# Names of the new parameters in ours and in theirs; theirs are (inputs, outputs).
NAMES = {
    "cross_norm.before": "ln_cross_attn",
    "cross.query": "crossattention.q_attn",
    "cross.kv": "crossattention.c_attn",
    "cross.output": "crossattention.c_proj",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Any]:
    """Return ours and theirs, with the same weights."""
    torch.manual_seed(0)
    encoder, decoder = transformers.BertModel(BERT), transformers.GPT2LMHeadModel(GPT2)
    with torch.no_grad():
        for model in (encoder, decoder):
            for parameter in model.parameters():
                parameter += 0.2 * torch.randn(parameter.shape)
    theirs = transformers.EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    folder: Path = tmp_path_factory.mktemp("pair")
    encoder.save_pretrained(folder / "bert")
    config = transformers.GPT2Config(**{**GPT2.to_dict(), "add_cross_attention": False})
    plain = transformers.GPT2LMHeadModel(config)
    plain.load_state_dict(decoder.state_dict(), strict=False)
    plain.save_pretrained(folder / "gpt2")
    ours = join(read_network(folder / "bert"), read_network(folder / "gpt2")).eval()
    with torch.no_grad():
        for i, block in enumerate(decoder.transformer.h):
            for own, name in NAMES.items():
                for kind, tensor in block.get_submodule(name).named_parameters():
                    wanted = ours.get_parameter(f"decoder.blocks.{i}.{own}.{kind}")
                    wanted.copy_(tensor.t() if tensor.dim() == 2 else tensor)
    return ours, theirs


@torch.no_grad()
def test_logits_match(pair: tuple[Transformer, Any]) -> None:
    ours, theirs = pair
    source_lengths, target_lengths = [9, 4, 1], [5, 7, 2]
    generator = torch.Generator().manual_seed(1)
    sources = torch.randint(3, 60, (3, 9), generator=generator)
    targets = torch.randint(3, 50, (3, 7), generator=generator)
    visible = torch.arange(9) < torch.tensor(source_lengths)[:, None]
    expected = theirs(input_ids=sources, attention_mask=visible, decoder_input_ids=targets).logits

    def pack(rows: Tensor, lengths: list[int]) -> Tensor:
        return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])

    mask = Mask(source_lengths)
    memory = ours.encode(pack(sources, source_lengths), mask)
    causal = Mask.causal(target_lengths)
    packed = pack(targets, target_lengths)
    hidden = ours(packed, causal, memory=memory, memory_mask=mask)
    found = ours.logits(hidden).split(target_lengths)
    for row, logits in zip(expected, found, strict=True):
        torch.testing.assert_close(logits, row[: len(logits)], rtol=1e-4, atol=1e-4)
