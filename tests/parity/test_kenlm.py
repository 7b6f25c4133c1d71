"""KenLM gives the log-probabilities of our models from their ARPA files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from firth import export, pretrain
from firth.data.stories import write_stories
from firth.jobs.preparation import prepare
from firth.models.masks import Mask
from firth.tokenizers.trainer import train_tokenizer

kenlm = pytest.importorskip("kenlm", reason="kenlm is not installed: run `make references`")
TEXTS = ["the dog barked loudly at the quokka .", "zebra zebra", "", "she asked him : why not ?"]


@pytest.fixture(scope="module", params=["word", "bpe"])
def shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    write_stories(folder / "stories", words=10_000, seed=0)
    size = None if request.param == "word" else 500
    text = folder / "stories/train.txt"
    tokenizer, _ = train_tokenizer([text], kind=request.param, vocab_size=size, workers=1)
    return prepare([text], tokenizer=tokenizer, out=folder / "shards", workers=1).path


@pytest.mark.parametrize("order", [2, 3, 4, 5])  # KenLM has no unigram models
def test_log_probabilities(shards: Path, order: int, tmp_path: Path) -> None:
    model = pretrain(preset=f"ngram-{order}", data=shards, out=tmp_path / "run").model
    export(model, tmp_path / "model.arpa", to="arpa")
    theirs = kenlm.Model(str(tmp_path / "model.arpa"))
    tokenizer, config = model.require_tokenizer(), model.config
    assert theirs.order == order
    for text in TEXTS:
        ids = tokenizer.encode(text)
        words = " ".join(tokenizer.backend.id_to_token(id) for id in ids)
        expected = [score for score, _, _ in theirs.full_scores(words)]
        tokens = torch.tensor([config.bos_token_id, *ids, config.eos_token_id])
        states = model.network(tokens[:-1], Mask.causal([len(tokens) - 1]))
        logs = model.network.logits(states).gather(1, tokens[1:, None])[:, 0] / math.log(10)
        assert logs.numpy() == pytest.approx(np.array(expected), abs=1e-4)
