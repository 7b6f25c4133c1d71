"""Negative sampling: steps against autograd, C against the plain version, the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from firth.models.subwords import SubwordConfig
from firth.training.word_vectors import c_kernels
from firth.training.word_vectors.negative_sampling import (
    NegativeSampling,
    NegativeSamplingConfig,
    Windows,
)
from firth.training.word_vectors.sampling import keep_probabilities, negative_distribution
from firth.training.word_vectors.subword_rows import SubwordRows, find_rows
from firth.training.word_vectors.token_segments import Segment, TokenSegments
from tests.training.word_vectors import Texts, needs_kernels, random_texts

WORDS = ["the", "there", "other", "thing", "nothing", "a", "at", "cat", "cats", "zoo"] * 3
WORDS = [word + "s" * (index // 10) for index, word in enumerate(WORDS)]
KINDS = {"skipgram": (False, False), "cbow": (True, False), "fasttext": (False, True)}


def make(kind: str, text: TokenSegments, **options: object) -> NegativeSampling:
    average, with_subwords = KINDS[kind]
    settings = {"vector_size": 20, "window": 3, "negative": 4, "sample": 0.05, "learning_rate": 0.5}
    config = NegativeSamplingConfig(**(settings | options), average=average)  # type: ignore[arg-type]
    subwords = find_rows(WORDS, SubwordConfig(min_n=2, max_n=3, buckets=40))
    model = NegativeSampling(text.counts, text.tokens, config, subwords if with_subwords else None)
    generator = torch.Generator().manual_seed(1)
    model.input += torch.randn(model.input.shape, generator=generator) / 3
    model.output += torch.randn(model.output.shape, generator=generator) / 3
    return model


def rows_of(word: int, subwords: SubwordRows | None) -> list[int]:
    if subwords is None:
        return [word]
    return subwords.rows[subwords.starts[word] : subwords.starts[word + 1]].tolist()


def autograd_steps(
    model: NegativeSampling, segment: Segment, windows: Windows, lr: float
) -> tuple[Tensor, Tensor]:
    """One window after the other. Every row of a context changes by the gradient of the mean."""
    new_input, new_output = model.input.clone(), model.output.clone()
    for target in np.unique(windows.targets):
        words = segment.tokens[windows.contexts[windows.targets == target]].tolist()
        rows = [rows_of(word, model.subwords) for word in words]
        inputs = torch.stack([model.input[each].mean(0) for each in rows])
        if model.config.average:
            inputs = inputs.mean(0, keepdim=True)
            rows = [[row for each in rows for row in each]]
        chosen = windows.outputs[target][windows.valid[target]]
        inputs.requires_grad_()
        outputs = model.output[chosen].clone().requires_grad_()
        logits = inputs @ outputs.T
        loss = -logsigmoid(logits[:, 0]).sum() - logsigmoid(-logits[:, 1:]).sum()
        loss.backward()
        for each, gradient in zip(rows, inputs.grad, strict=True):
            new_input.index_add_(0, torch.tensor(each), -lr * gradient.expand(len(each), -1))
        new_output.index_add_(0, torch.from_numpy(chosen), -lr * outputs.grad)
    return new_input, new_output


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_that_of_autograd(kind: str) -> None:
    text = TokenSegments(random_texts(30), 30)
    model, segment = make(kind, text), next(iter(text))
    windows = model.draw_windows(segment, 5, 60, epoch=0)
    expected = autograd_steps(model, segment, windows, lr=0.1)
    model.train_batch(segment, windows, learning_rate=0.1)
    for found, wanted in zip((model.input, model.output), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_windows_have_the_context_of_one_document_and_no_negative_is_the_target() -> None:
    text = TokenSegments(Texts([[1, 2, 3, 4], [5, 6]]), 7)
    model, segment = make("skipgram", TokenSegments(random_texts(7), 7)), next(iter(text))
    reach = np.zeros(4, dtype=np.int64)
    for epoch in range(50):
        windows = model.draw_windows(segment, 0, 6, epoch)
        distances = np.abs(windows.contexts - windows.targets)
        assert distances.min() == 1
        same = segment.documents[windows.contexts] == segment.documents[windows.targets]
        assert same.all()
        assert (windows.valid[:, 1:] == (windows.outputs[:, 1:] != windows.outputs[:, :1])).all()
        reach[distances[windows.targets == 0].max()] += 1
    assert reach[0] == 0
    assert reach[1:].min() >= 8  # 1, 2 and 3 are equally likely


def train(kind: str, text: TokenSegments, threads: int) -> NegativeSampling:
    """Train two epochs with the C kernel, or with the plain version (0 threads)."""
    model = make(kind, text, epochs=2, learning_rate=0.05)
    for epoch in range(2):
        for segment in text:
            if threads:
                c_kernels.train_segment(model, segment, epoch, threads)
            else:
                model.train_segment(segment, epoch)
    return model


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
def test_c_computes_the_plain_version_and_the_same_bits_with_any_threads(kind: str) -> None:
    text = TokenSegments(random_texts(30, documents=60), 30, ignored=[3])
    plain, one = train(kind, text, 0), train(kind, text, 1)
    torch.testing.assert_close(one.input, plain.input, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.output, plain.output, rtol=1e-3, atol=1e-4)
    for threads in (2, 4):
        other = train(kind, text, threads)
        assert torch.equal(one.input, other.input)
        assert torch.equal(one.output, other.output)


def test_subsampling_keeps_the_fraction_of_the_paper() -> None:
    counts = np.array([5000, 4900, 100])
    keep = keep_probabilities(counts, sample=0.01)
    fractions = counts / counts.sum()
    # word2vec.c: (sqrt(count / (sample * total)) + 1) * (sample * total) / count
    expected = (np.sqrt(fractions / 0.01) + 1) * 0.01 / fractions
    np.testing.assert_allclose(keep, np.minimum(expected, 1))
    assert keep_probabilities(counts, sample=0).tolist() == [1, 1, 1]


def test_negatives_have_the_probabilities_of_counts_to_the_three_quarters() -> None:
    counts = np.random.default_rng(1).integers(0, 1000, 50)
    thresholds, aliases = negative_distribution(counts)
    chosen = thresholds / 2.0**32
    found = chosen + np.bincount(aliases, weights=1 - chosen, minlength=50)
    np.testing.assert_allclose(found / 50, counts**0.75 / (counts**0.75).sum(), atol=1e-8)


def test_no_vector_makes_too_long_a_step() -> None:
    config = NegativeSamplingConfig(window=5, negative=5)
    many, few = (np.full(n, 100) for n in (600, 5))
    sizes = [NegativeSampling(counts, 1000, config).batch_words for counts in (many, few)]
    assert sizes == [512, 10]  # two tokens of each word
    faster = replace(config, learning_rate=0.05)
    assert NegativeSampling(few, 1000, faster).batch_words == 5
