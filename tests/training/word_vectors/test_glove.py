"""GloVe: counts against a brute-force count, steps against autograd, the same bits."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from firth.training.word_vectors import c_kernels, token_segments
from firth.training.word_vectors.cooccurrences import Cooccurrences, count_cooccurrences
from firth.training.word_vectors.glove import BLOCKS, INITIAL_SQUARES, Glove, GloveConfig, Pairs
from firth.training.word_vectors.token_segments import TokenSegments
from tests.training.word_vectors import Texts, needs_kernels, random_texts

CONFIG = GloveConfig(vector_size=20, window=3, learning_rate=0.1)


def as_dict(counted: Cooccurrences) -> dict[tuple[int, int], float]:
    return {(int(i), int(j)): float(x) for i, j, x in zip(*counted, strict=True)}


def test_counts_equal_a_hand_worked_example() -> None:
    # "the cat saw the dog" with a window of 2, and "the dog" in a document of its own
    text = TokenSegments(Texts([[0, 1, 2, 0, 3], [0, 3]]), 4)
    expected = {
        (0, 1): 1 + 1 / 2,  # the-cat at distance 1, cat-the at distance 2
        (0, 2): 1 + 1 / 2,  # saw-the at distance 1, the-saw at distance 2
        (1, 2): 1,
        (0, 3): 1 + 1,
        (2, 3): 1 / 2,
    }
    assert as_dict(count_cooccurrences(text, 4, window=2)) == expected


def test_counts_equal_those_of_a_loop_over_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_segments, "SEGMENT_TOKENS", 50)  # several parts, to be merged
    texts, expected = random_texts(20, documents=30), Counter[tuple[int, int]]()
    for row in texts.rows:
        for i, j in ((i, j) for i in range(len(row)) for j in range(len(row))):
            if i != j and abs(i - j) <= 4 and row[i] <= row[j]:
                expected[int(row[i]), int(row[j])] += 1 / abs(i - j)  # type: ignore[assignment]
    found = as_dict(count_cooccurrences(TokenSegments(texts, 20), 20, window=4))
    assert found == pytest.approx(dict(expected))


def model() -> Glove:
    text = TokenSegments(random_texts(40), 40)
    glove = Glove(40, Pairs(count_cooccurrences(text, 40, CONFIG.window), CONFIG), CONFIG)
    generator = torch.Generator().manual_seed(1)
    for tensor in glove.vectors + glove.biases:
        tensor += torch.randn(tensor.shape, generator=generator) / 3
    return glove


def test_a_step_is_that_of_autograd() -> None:
    glove = model()
    words, contexts, pairs = glove.pairs.block(1, 4)
    index = [torch.from_numpy(words), torch.from_numpy(contexts)]
    leaves = [tensor.clone().requires_grad_() for tensor in (*glove.vectors, *glove.biases)]
    products = (leaves[0][index[0]] * leaves[1][index[1]]).sum(1)
    predicted = products + leaves[2][index[0]] + leaves[3][index[1]]
    counts = torch.from_numpy(np.exp(glove.pairs.targets[pairs]))
    weights = (counts / CONFIG.x_max).pow(0.75).clamp(max=1)
    loss = (weights * (predicted - counts.log()) ** 2).sum() / 2
    loss.backward()
    assert glove.train_batch(words, contexts, pairs) == pytest.approx(loss.item(), rel=1e-4)
    for before, after in zip(leaves, (*glove.vectors, *glove.biases), strict=True):
        assert before.grad is not None
        step = CONFIG.learning_rate / INITIAL_SQUARES**0.5 * before.grad
        torch.testing.assert_close(after, before.detach() - step, rtol=1e-4, atol=1e-5)


def test_every_entry_of_the_symmetric_matrix_is_trained_once() -> None:
    pairs = model().pairs
    blocks = [pairs.block(row, column) for row in range(BLOCKS) for column in range(BLOCKS)]
    entries = Counter(
        (int(i), int(j))
        for words, contexts, _ in blocks
        for i, j in zip(words, contexts, strict=True)
    )
    stored = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert set(entries.values()) == {1}
    assert set(entries) == stored | {(j, i) for i, j in stored}


@needs_kernels
def test_c_computes_the_plain_version_and_the_same_bits_with_any_threads() -> None:
    plain, trained = model(), [model() for _ in range(3)]
    for round in range(BLOCKS):
        expected = plain.train_round(round, batch_size=1)
        for threads, glove in enumerate(trained, start=1):
            assert c_kernels.train_round(glove, round, threads) == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(trained[0].vectors, plain.vectors, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(trained[0].biases, plain.biases, rtol=1e-3, atol=1e-4)
    for other in trained[1:]:
        assert torch.equal(trained[0].final_vectors(), other.final_vectors())
