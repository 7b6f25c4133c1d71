"""N-gram models go through the same functions as a Transformer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from firth import embed, evaluate, export, finetune, generate, load, pretrain
from firth.data.shards import Shards
from firth.jobs.pretrain_result import PretrainResult
from firth.models.masks import Mask
from firth.models.ngram.model import NgramModel
from firth.training.run_directory import read_run
from firth.utils.errors import MismatchError, UsageError


@pytest.fixture(scope="module")
def trigram(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    return pretrain(preset="ngram-3", data=shards, out=tmp_path_factory.mktemp("runs") / "trigram")


def scores(network: NgramModel, ids: list[int]) -> list[float]:
    tokens = torch.tensor([network.config.bos_token_id, *ids])
    states = network(tokens[:-1], Mask.causal([len(ids)]))
    found: list[float] = network.score_tokens(states, tokens[1:])[0].tolist()
    return found


def test_longer_contexts_predict_better(
    shards: Path, trigram: PretrainResult, tmp_path: Path
) -> None:
    losses = [
        pretrain(preset=f"ngram-{n}", data=shards, out=tmp_path / str(n)).loss for n in (1, 2)
    ]
    assert losses[0] > losses[1] + 1 > trigram.loss + 1
    validation = read_run(trigram.path)["results"]["validation"]
    assert validation["perplexity"] == pytest.approx(math.exp(trigram.loss))


def test_the_validation_loss_is_that_of_evaluate(shards: Path, trigram: PretrainResult) -> None:
    dev = shards.parent / "stories/dev.txt"
    found = evaluate(trigram.path, task="lm", data=dev)
    valid = Shards(shards, "valid")
    ends = sum(
        scores(trigram.model.network, [*valid[i].tolist(), trigram.model.config.eos_token_id])[-1]
        for i in range(len(valid))
    )
    counts = valid.tokens, valid.tokens + len(valid)
    nats = math.log(found.metrics["token_perplexity"].value) * counts[0] - ends
    assert nats / counts[1] == pytest.approx(trigram.loss, rel=1e-4)


def test_it_generates(trigram: PretrainResult) -> None:
    assert generate(trigram.path, "the old", max_new_tokens=8).strip()
    options = {"method": "sample", "max_new_tokens": 8}
    drawn = [generate(trigram.path, "the old", seed=seed, **options) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_it_survives_an_arpa_file(trigram: PretrainResult, tmp_path: Path) -> None:
    model = trigram.model
    assert export(trigram.path, tmp_path / "model.arpa", to="arpa") == "arpa"
    ids = model.require_tokenizer().encode("The dog barked at the old man.")
    words = " ".join(model.require_tokenizer().backend.id_to_token(id) for id in ids)
    again = load(tmp_path / "model.arpa")
    found = scores(again.network, again.require_tokenizer().encode(words))
    assert found == pytest.approx(scores(model.network, ids), abs=1e-5)
    with pytest.raises(MismatchError, match="n-gram"):
        export(load("stories-decoder"), tmp_path / "other.arpa", to="arpa")


def test_what_it_cannot_do_says_so(trigram: PretrainResult, shards: Path, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="hidden states"):
        embed(trigram.path, ["a text"])
    rows = [{"text": "good", "label": "yes"}, {"text": "bad", "label": "no"}]
    with pytest.raises(MismatchError, match="hidden states"):
        finetune(trigram.path, task="classify", train=rows, out=tmp_path / "run")
    with pytest.raises(UsageError, match="continued"):
        pretrain(source=trigram.path, data=shards, out=tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()
