"""`Model.forward`, `logits` and `hidden_states` compute what `transformers` computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from firth import Model, UsageError, load
from firth.utils.errors import MismatchError
from tests.parity.reference_models import VOCABULARY
from tests.parity.test_families import ROWS

ONE_OF_EACH = ("BertForMaskedLM-eps", "GPT2LMHeadModel-inner", "LlamaForCausalLM-grouped")
BOTH = ("T5ForConditionalGeneration", "BartForConditionalGeneration")
CHOSEN = [row for row in ROWS if row.id in ONE_OF_EACH]
CHOSEN += [next(row for row in ROWS if row.name == name) for name in BOTH]
LENGTHS = (9, 4, 1)


def opened(row: Any, folder: Path) -> tuple[Any, Model]:
    reference = row.reference().eval()
    if reference.config.is_encoder_decoder:
        for config in (reference.config, reference.generation_config):
            config.decoder_start_token_id = 3
    reference.save_pretrained(folder)
    return reference, load(folder)


def padded(left: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of different lengths with their attention mask."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=generator)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    mask = mask.flip(1) if left else mask
    return ids.where(mask.bool(), torch.zeros_like(ids)), mask


@pytest.mark.parametrize("row", CHOSEN, ids=lambda row: row.name)
def test_logits_of_a_padded_batch(row: Any, tmp_path: Path) -> None:
    reference, model = opened(row, tmp_path)
    ids, mask = padded(left=row.name.startswith("Llama"))
    more = {}
    if reference.config.is_encoder_decoder:
        more = dict(decoder_input_ids=torch.tensor([[3, 5, 6], [3, 7, 8], [3, 9, 4]]))
    with torch.no_grad():
        theirs = reference(input_ids=ids, attention_mask=mask, **more).logits
        ours = model.forward(ids, mask, **more)
        whole = model.forward(ids, **more)
        as_lists: Any = ids.tolist(), mask.tolist()
        assert model.forward(*as_lists, **more).equal(ours)
    assert ours.shape == theirs.shape
    real = mask.bool() if not more else torch.ones(3, 3, dtype=torch.bool)
    torch.testing.assert_close(ours[real], theirs[real], rtol=1e-3, atol=1e-4)
    assert not ours[~real].any()
    assert whole.shape == theirs.shape


@pytest.mark.parametrize("row", CHOSEN, ids=lambda row: row.name)
def test_gradients_and_dropout_in_training_mode(row: Any, tmp_path: Path) -> None:
    reference, model = opened(row, tmp_path)
    ids, mask = padded()
    more: Any = {}
    if reference.config.is_encoder_decoder:
        more = dict(decoder_input_ids=ids, decoder_attention_mask=mask)
    for parameter in reference.parameters():
        parameter.requires_grad_()
    kept = mask.bool()
    nn.functional.cross_entropy(model.forward(ids, mask, **more)[kept], ids[kept]).backward()
    logits = reference(input_ids=ids, attention_mask=mask, **more).logits
    nn.functional.cross_entropy(logits[kept], ids[kept]).backward()
    embedding = reference.get_input_embeddings().weight.grad
    torch.testing.assert_close(model.network.tokens.weight.grad, embedding, rtol=1e-2, atol=1e-4)
    model.network.train()
    assert model.config.dropout == 0 or not model.forward(ids).equal(model.forward(ids))


def test_an_encoder_decoder_reads_its_input_shifted(tmp_path: Path) -> None:
    """As in transformers' BART, where the decoder's input is the encoder's, shifted right."""
    reference, model = opened(CHOSEN[-1], tmp_path)
    ids, _ = padded()
    with torch.no_grad():
        torch.testing.assert_close(
            model.forward(ids), reference(input_ids=ids).logits, rtol=1e-3, atol=1e-4
        )


def test_what_forward_refuses(tmp_path: Path) -> None:
    _, model = opened(CHOSEN[0], tmp_path)
    ids, mask = padded()
    with pytest.raises(UsageError, match=r"\[batch, length\].*\(9,\)"):
        model.forward(ids[0])
    with pytest.raises(UsageError, match="float32"):
        model.forward(ids.float())
    with pytest.raises(UsageError, match=r"\(3, 9\).*\(3, 4\)|\(3, 4\).*\(3, 9\)"):
        model.forward(ids, mask[:, :4])
    with pytest.raises(UsageError, match=f"{VOCABULARY}.*vocab_size is {VOCABULARY}"):
        model.forward(ids + VOCABULARY)
    with pytest.raises(UsageError, match="decoder_input_ids"):
        model.forward(ids, decoder_input_ids=ids)
    with pytest.raises(MismatchError, match=r"21 tokens.*20"):
        model.forward(torch.ones(1, 21, dtype=torch.long))
    assert model.forward(ids, torch.zeros_like(mask)).shape == (3, 9, VOCABULARY)
    assert model.forward(ids[:0]).shape == (0, 9, VOCABULARY)
