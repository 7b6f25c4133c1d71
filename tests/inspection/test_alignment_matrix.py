"""The alignment matrix of recurrent encoder-decoders, as `firth inspect` shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth import Model
from firth.inspection.alignment_matrix import END, alignment_matrix
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.networks import build_network
from firth.models.presets import preset
from firth.tokenizers.trainer import train_tokenizer
from firth.training.pretrain_config import preset_config
from firth.utils.errors import MismatchError

SOURCE, TARGET = "the cat saw a dog .", "a dog was seen ."


def build(name: str, **fields: str) -> Model:
    tokenizer, _ = train_tokenizer([f"{SOURCE} {TARGET}"] * 2, kind="word")
    row, small = preset(name), dict(hidden_size="8", embedding_size="8")
    network = build_network(preset_config(row, tokenizer, small | fields), row.heads)
    network.read_vocabulary(tokenizer)
    return Model(initialise(network, seed=0).eval(), tokenizer)


@pytest.mark.parametrize("attention", ["bahdanau", "luong"])
def test_rows_are_output_words_and_columns_source_words(attention: str, tmp_path: Path) -> None:
    model = build("rnn-seq2seq", attention=attention)
    found = firth.inspect(model, SOURCE, target=TARGET, out=tmp_path / "page.html")
    assert [section.name for section in found.sections] == ["alignment"]
    values = found.values()["texts"][0]["alignment"]
    assert values["source"] == SOURCE.split()
    assert values["output"] == [*TARGET.split(), END]
    weights = np.array(values["weights"])  # (6, 6)
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-3)
    ids, alignments = model.input_ids(SOURCE), list[torch.Tensor]()
    start, mask = model.config.decoder_start_token_id, Mask([6])
    assert start is not None
    decoder = torch.tensor([start, *model.require_tokenizer().encode(TARGET)])
    with torch.no_grad():
        memory = model.network.encode(ids, mask)
        model.network(
            decoder, Mask.causal([6]), memory=memory, memory_mask=mask, alignments=alignments
        )
    np.testing.assert_allclose(weights, alignments[0].numpy(), atol=1e-4)
    assert "dog" in (tmp_path / "page.html").read_text()


def test_unknown_words_are_shown_as_they_are() -> None:
    found = alignment_matrix(build("pointer-generator"), "the Quokka saw a dog .")
    assert found.source[1] == "Quokka"


def test_without_attention_there_is_no_alignment() -> None:
    model = build("rnn-seq2seq", attention="none")
    with pytest.raises(MismatchError, match="attention"):
        firth.inspect(model, SOURCE, show="alignment")
    with pytest.raises(MismatchError, match="RnnSeq2Seq"):
        firth.inspect(model, SOURCE)
