"""ELMo: what each state may depend on, and its way through the verbs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import firth
from firth import Model
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.presets import preset
from firth.models.recurrent.elmo import Elmo
from firth.models.recurrent.elmo_config import ElmoConfig
from firth.models.transformer import count_parameters
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer

TEXTS = ["the old bat flew home .", "a young fox ran to the old tree .", "the fox slept ."] * 8
SIZES = dict(hidden_size=16, num_layers=2, cell_size=12, filters=(4, 8), highway_layers=1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, kind="word")[0]


@pytest.fixture(scope="module")
def network(tokenizer: Tokenizer) -> Elmo:
    ids = {f"{role}_token_id": id for role, id in tokenizer.special_ids.items() if role[1:] == "os"}
    how = dict(initialization="fan-in", init_std=1.0, head_bias="trained")
    config = ElmoConfig(
        architecture="decoder", vocab_size=len(tokenizer), max_positions=64, **SIZES, **how, **ids
    )
    network = initialise(Elmo(config, ["language"]), seed=1).eval()
    network.read_vocabulary(tokenizer)
    return network


@torch.no_grad()
def both_logits(network: Elmo, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, head = network(ids, Mask.causal([len(ids)])), network.heads["language"]
    states = [network.prediction_states(hidden, backward=backward) for backward in (False, True)]
    return head(states[0], network.tokens.weight), head(states[1], network.tokens.weight)


def test_no_prediction_sees_its_token(network: Elmo) -> None:
    """Perturb each token: predictions of it and of those beyond it must not change."""
    ids = torch.arange(5, 12)
    forward, backward = both_logits(network, ids)
    for t in range(len(ids)):
        changed = ids.clone()
        changed[t] = 13
        new_forward, new_backward = both_logits(network, changed)
        # The state of position i predicts token i + 1 (forward) or i - 1 (backward).
        assert torch.equal(new_forward[:t], forward[:t])
        assert torch.equal(new_backward[t + 1 :], backward[t + 1 :])
        assert not torch.allclose(new_forward[t:], forward[t:])
        assert not torch.allclose(new_backward[: t + 1], backward[: t + 1])


@torch.no_grad()
def test_layers_equal_lstms_on_one_text_at_a_time(network: Elmo) -> None:
    lengths = [3, 9, 1, 4]
    ids = torch.randint(5, 12, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    packed: list[torch.Tensor] = []
    network.encode(ids, Mask(lengths), layers=packed)
    for row, *layers in zip(*(x.split(lengths) for x in (ids, *packed)), strict=True):
        words = network.words(row)
        forward, backward = words, words.flip(0)
        torch.testing.assert_close(layers[0], torch.cat([words, words], -1))
        for i, layer in enumerate(layers[1:]):
            one, other = network.forward_layers[i].rnn, network.backward_layers[i].rnn
            forward = one(forward)[0] + i * forward
            backward = other(backward)[0] + i * backward
            expected = torch.cat([forward, backward.flip(0)], -1)
            torch.testing.assert_close(layer, expected, atol=1e-5, rtol=1e-4)


def test_published_size() -> None:
    """93.6M without the softmax; torch has a second bias vector in each of the four LSTMs."""
    row = preset("elmo-original")
    with torch.device("meta"):
        size = count_parameters(Elmo(row.config))
    assert size - 4 * 4 * 4096 == 93_600_864


def test_unknown_words_are_read_by_their_characters(
    network: Elmo, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = Model(network, tokenizer)
    texts = ["the zorilla slept .", "the okapi slept .", "the <unk> slept ."]
    vectors = model.embed(texts)
    assert not np.allclose(vectors[0], vectors[1])
    assert not np.allclose(vectors[0], vectors[2])
    model.save(tmp_path)
    again = firth.load(tmp_path)
    tokenizer.open_encode("gnu eland")  # other open words in between
    assert np.array_equal(again.embed(texts), vectors)
    assert again.hidden_states(texts[0]).shape == (3, 4, 16)
    shown = firth.inspect(again, texts[0]).values()["texts"][0]["tokens"]["stacks"][0]
    assert [row["token"] for row in shown["tokens"]] == ["the", "zorilla", "slept", "."]
    assert len(shown["mean_norms"]) == 3
    words = again.embed_tokens(texts[0])
    assert [word.token for word in words] == ["the", "<unk>", "slept", "."]


def test_pretrain_and_finetune_with_a_layer_mix(tokenizer: Tokenizer, tmp_path: Path) -> None:
    overrides = {f"model.{name}": value for name, value in SIZES.items() if name != "filters"}
    run = firth.pretrain(
        preset="elmo", data=TEXTS, tokenizer=tokenizer, out=tmp_path / "run", steps=4,
        batch_tokens=256, overrides=overrides, learning_rate=1e-2,
    )  # fmt: skip
    metrics = firth.evaluate(run.path, task="lm", data=[" ".join(TEXTS[:3])]).metrics
    assert 1 < metrics["token_perplexity"].value < len(tokenizer)
    assert len(firth.load(run.path).generate("the", max_new_tokens=3).split()) <= 3
    examples = [{"text": text, "label": str("fox" in text)} for text in TEXTS]
    for strategy in ("probe:layer=mix", "full"):
        tuned = firth.finetune(
            run.path, task="classify", train=examples, dev=examples[:6], strategy=strategy,
            out=tmp_path / strategy[:5], epochs=2,
        )  # fmt: skip
        model = firth.load(tuned.path)
        assert model.config.pooling == "mean"
        assert model.predict("the zorilla slept .")["label"] in ("True", "False")
