"""Networks of one task: packed batches, convolutions, embeddings of words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d

from firth.models.initialization import initialise
from firth.models.label_heads import AttentionPooling
from firth.models.masks import Mask
from firth.models.networks import build_network
from firth.models.pooling import pool
from firth.models.presets.task_models import TASK_MODELS
from firth.models.task_specific.text_cnn import TextCnn
from firth.models.word_embedding import WordEmbedding
from firth.models.word_model_config import WordModelConfig
from firth.tokenizers.open_vocabulary import open_word
from firth.tokenizers.word_vocabulary import choose_vocabulary, word_tokenizer

LENGTHS = [4, 1, 9, 2]
SMALL: dict[str, Any] = dict(vocab_size=20, embedding_size=6, hidden_size=12)


def stream() -> torch.Tensor:
    return torch.randint(20, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))


NETWORKS = ["cnn", "lstm", "bilstm-attention", "bilstm-crf"]


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_packed_equals_one_at_a_time(name: str) -> None:
    network = initialise(build_network(replace(TASK_MODELS[name].config, **SMALL)), 0).eval()
    tokens = stream()
    packed = network(tokens, Mask(LENGTHS))
    alone = [network(part, Mask([len(part)])) for part in tokens.split(LENGTHS)]
    assert torch.allclose(packed, torch.cat(alone), atol=1e-5)


@torch.no_grad()
def test_filters_and_maximum_over_time() -> None:
    """As Kim 2014, equations 2 to 4, with zeros after the text."""
    network = initialise(build_network(replace(TASK_MODELS["cnn"].config, **SMALL)), 0)
    assert isinstance(network, TextCnn)
    tokens = torch.tensor([3, 1, 4, 1, 5])
    hidden = network(tokens, Mask([5]))
    words = torch.cat([network.tokens(tokens), torch.zeros(4, 6)]).T[None]  # (1, E, L + 4)
    expected = []
    for layer, width in zip(network.filters, (3, 4, 5), strict=True):
        kernel = layer.weight.unflatten(1, (width, 6)).mT  # (filters, E, width)
        expected.append(conv1d(words, kernel, layer.bias)[0, :, :5].relu().amax(1))
    found = pool(hidden, torch.tensor([0, 5]), "max")[0]
    assert torch.allclose(found, torch.cat(expected), atol=1e-6)


@torch.no_grad()
def test_attention_is_a_weighted_mean() -> None:
    head = AttentionPooling(replace(TASK_MODELS["lstm"].config, hidden_size=4))
    hidden, starts = torch.randn(5, 4), torch.tensor([0, 3, 5])
    for begin, end, found in zip([0, 3], [3, 5], head(hidden, starts), strict=True):
        rows = hidden[begin:end]
        scores = torch.tanh(rows @ head.dense.weight.T + head.dense.bias) @ head.context.weight[0]
        assert torch.allclose(found, scores.softmax(0) @ rows, atol=1e-6)


def test_fixed_words_are_not_trained_and_found_by_their_text() -> None:
    vocabulary = choose_vocabulary(
        {"The": 1, "sun": 2, "Sun": 1}, vector_words=["the", "moon"], folds_case=True
    )
    tokenizer = word_tokenizer(vocabulary.words, lowercase=False, split=True)
    config = WordModelConfig(
        architecture="encoder", vocab_size=len(tokenizer), max_positions=9, hidden_size=3,
        num_layers=1, num_word_rows=len(vocabulary.row_words),
        num_fixed_rows=vocabulary.num_fixed, unknown_row=1, folds_case=True,
    )  # fmt: skip
    words = WordEmbedding(config)
    words.set_words(vocabulary.rows, vocabulary.row_words)
    ids = torch.tensor(tokenizer.open_encode("The sun Sun Moon Mars"))
    assert [open_word(int(id)) for id in ids[3:]] == ["Moon", "Mars"]
    vectors = words(ids)
    assert torch.equal(vectors[1], vectors[2])  # sun, Sun
    assert torch.equal(vectors[3], words.fixed[0])  # moon has a pre-trained vector
    assert torch.equal(vectors[4], words.weight[1])  # the unknown word's
    vectors.sum().backward()
    assert words.weight.grad is not None
    assert not words.fixed.requires_grad
