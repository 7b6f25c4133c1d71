"""GloVe: products of vectors are the logarithms of co-occurrence counts (Pennington et al. 2014).

Entry (i, j) of the symmetric matrix of counts has the loss f(x) (w_i c_j + a_i + b_j - log x)^2 / 2
for a count x, with f(x) = min(1, (x / x_max)^0.75). A word's vector is w + c.

The matrix is divided into blocks by the ids of words. Blocks without a common row or column are
independent (Gemulla et al. 2011), so `glove.c` trains them on several threads, and no result
depends on their number. The plain version here trains batches of a block's pairs.

P  pairs     V  words     W  vector size
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firth.training.word_vectors.cooccurrences import Cooccurrences
from firth.training.word_vectors.matrices import aligned_rows, random_vectors
from firth.training.word_vectors.negative_sampling import LossSum
from firth.utils.config_fields import Doc
from firth.utils.rng import Longs, derive_key, derive_keys

BLOCKS = 16  # as in glove.c
# AdaGrad's sums of squares at the start. The authors' program has 1, for 25 or more epochs; with 5
# epochs the vectors of a small text are better with 0.1, and diverge with 0.01.
INITIAL_SQUARES = 0.1
_ORDER_DRAW = 1 << 33


@dataclass(frozen=True, kw_only=True)
class GloveConfig:
    """How GloVe vectors are trained."""

    vector_size: Annotated[int, Doc("Size of a word's vector.")] = 100
    window: Annotated[int, Doc("Distance up to which words co-occur.")] = 10
    x_max: Annotated[float, Doc("Count from which on a pair has the full weight.")] = 10.0
    exponent: Annotated[float, Doc("Exponent of the weight of rarer pairs.")] = 0.75
    learning_rate: float = 0.05
    epochs: int = 5
    seed: int = 0


class Pairs:
    """Counted pairs, ordered by block and at random within a block."""

    def __init__(self, counted: Cooccurrences, config: GloveConfig) -> None:
        first, second, counts = counted
        blocks = first % BLOCKS * BLOCKS + second % BLOCKS
        random = derive_keys(derive_key(config.seed, _ORDER_DRAW), np.arange(len(first)))
        order = np.argsort(blocks.astype(np.uint64) << np.uint64(56) | random >> np.uint64(8))
        self.starts: Longs = np.searchsorted(blocks[order], np.arange(BLOCKS * BLOCKS + 1))
        self.first: NDArray[np.int32] = first[order].astype(np.int32)
        self.second: NDArray[np.int32] = second[order].astype(np.int32)
        self.targets = np.log(counts[order]).astype(np.float32)
        weights = np.minimum(1, (counts[order] / config.x_max) ** config.exponent)
        self.weights = weights.astype(np.float32)

    def __len__(self) -> int:
        return len(self.first)

    def block(self, row: int, column: int) -> tuple[Longs, Longs, Longs]:
        """Return a block's words and contexts, and the pair of each: stored, then mirrored."""
        stored = np.arange(*self.starts[row * BLOCKS + column :][:2])
        mirrored = np.arange(*self.starts[column * BLOCKS + row :][:2])
        mirrored = mirrored[self.first[mirrored] != self.second[mirrored]]
        words = np.concatenate((self.first[stored], self.second[mirrored])).astype(np.int64)
        contexts = np.concatenate((self.second[stored], self.first[mirrored])).astype(np.int64)
        return words, contexts, np.concatenate((stored, mirrored))


class Glove:
    """The vectors and biases of words (index 0) and contexts (1), and AdaGrad's sums of squares.

    >>> counted = Cooccurrences(np.array([0, 0]), np.array([1, 2]), np.array([200.0, 2.0]))
    >>> model = Glove(3, Pairs(counted, GloveConfig()), GloveConfig(vector_size=4))
    >>> first, second = (sum(model.train_round(round).sum for round in range(16)) for _ in "12")
    >>> second < first, model.final_vectors().shape
    (True, torch.Size([3, 4]))
    """

    def __init__(self, vocab_size: int, pairs: Pairs, config: GloveConfig) -> None:
        self.config, self.pairs = config, pairs
        size = config.vector_size
        self.vectors = [random_vectors(vocab_size, size, config.seed, part) for part in (0, 1)]
        self.squares = [aligned_rows(vocab_size, size, INITIAL_SQUARES) for _ in range(2)]
        self.biases = [torch.zeros(vocab_size) for _ in range(2)]
        self.bias_squares = [torch.full((vocab_size,), INITIAL_SQUARES) for _ in range(2)]

    def final_vectors(self) -> Tensor:
        """Return the vector of every word, (V, W): the sum of word and context vectors."""
        return self.vectors[0] + self.vectors[1]

    def train_round(self, round: int, batch_size: int = 256) -> LossSum:
        """Train one of the rounds of an epoch: the blocks of one (broken) diagonal."""
        loss = LossSum(0.0, 0.0)
        for row in range(BLOCKS):
            words, contexts, pairs = self.pairs.block(row, (row + round) % BLOCKS)
            for start in range(0, len(words), batch_size):
                part = slice(start, start + batch_size)
                added = self.train_batch(words[part], contexts[part], pairs[part])
                loss = LossSum(loss.sum + added, loss.terms + len(words[part]))
        return loss

    def train_batch(self, words: Longs, contexts: Longs, pairs: Longs) -> float:
        """Make one step for some entries of the matrix; return the sum of their losses."""
        index = (torch.from_numpy(words), torch.from_numpy(contexts))
        targets = torch.from_numpy(self.pairs.targets[pairs])
        weights = torch.from_numpy(self.pairs.weights[pairs])
        sides = [self.vectors[side][index[side]] for side in (0, 1)]  # (P, W) each
        biases = self.biases[0][index[0]] + self.biases[1][index[1]]
        errors = (sides[0] * sides[1]).sum(1) + biases - targets  # (P,)
        slopes = weights * errors
        for side in (0, 1):
            gradients = slopes[:, None] * sides[1 - side]
            self._adagrad(self.vectors[side], self.squares[side], index[side], gradients)
            self._adagrad(self.biases[side], self.bias_squares[side], index[side], slopes)
        return float((weights * errors**2).sum() / 2)

    def _adagrad(self, values: Tensor, squares: Tensor, index: Tensor, gradients: Tensor) -> None:
        """Change rows by their gradients, divided by the root of earlier squared gradients."""
        steps = self.config.learning_rate * gradients / squares[index].sqrt()
        values.index_add_(0, index, steps, alpha=-1)
        squares.index_add_(0, index, gradients**2)
