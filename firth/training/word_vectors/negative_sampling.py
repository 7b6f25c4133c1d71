"""Skip-gram and CBOW with negative sampling (Mikolov et al. 2013a, 2013b), the plain version.

The gradients of a mini-batch of words are computed from the vectors as they were before it, and
added to them in the order of the text. word2vec lets threads overwrite each other's steps instead
(Recht et al. 2011), so that no two runs are the same. `negative_sampling.c` computes this in C.

B  words of a batch     P  pairs of a word and a word of its context
E  predictions: one per pair (skip-gram) or one per word with a context (CBOW)
K  outputs of a word: itself and its negatives     V  words     R  input rows     W  vector size
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag

from firth.training.word_vectors.matrices import aligned_rows, random_vectors
from firth.training.word_vectors.sampling import (
    AliasTable,
    keep_probabilities,
    negative_distribution,
)
from firth.training.word_vectors.subword_rows import SubwordRows
from firth.training.word_vectors.token_segments import Segment
from firth.utils.config_fields import Doc
from firth.utils.rng import Bools, Floats, Longs, derive_key, derive_keys, uniform

KEEP_DRAW, WINDOW_DRAW, NEGATIVE_DRAW = 0, 1, 2  # purposes of random numbers
# Learning rates of all predictions of a batch that change one vector, summed: by default two tokens
# of a word. All steps of a batch start at the same vectors, so too many of them go too far: with 16
# words as the vocabulary, vectors diverge from 3.6 on; with 40,000 they are as good with 11.
MAX_STEP = 1.8
BATCH_WORDS = (4, 512)  # least and most


@dataclass(frozen=True, kw_only=True)
class NegativeSamplingConfig:
    """How vectors are trained with negative sampling."""

    vector_size: Annotated[int, Doc("Size of a word's vector.")] = 100
    window: Annotated[int, Doc("Largest distance of a context word; drawn from 1 to this.")] = 5
    negative: Annotated[int, Doc("Negatives per word, shared by its window.")] = 5
    sample: Annotated[float, Doc("Fraction of tokens above which words are subsampled.")] = 1e-3
    average: Annotated[bool, Doc("CBOW: predict a word from the mean of its context.")] = False
    learning_rate: float = 0.025
    min_learning_rate: float = 0.0001  # reached at the end, linearly
    epochs: int = 5
    seed: int = 0


class LossSum(NamedTuple):
    """The sum of the losses of predictions, and their number."""

    sum: float
    terms: float


class Windows(NamedTuple):
    """What is predicted from what in a batch."""

    contexts: Longs  # (P,) index in the segment of the word that predicts
    targets: Longs  # (P,) index in the batch of the word that is predicted
    outputs: Longs  # (B, K) words: the target, then its negatives
    valid: Bools  # (B, K) False for a negative that equals its target


class NegativeSampling:
    """The matrices of a model with negative sampling, and what a step needs.

    >>> model = NegativeSampling(np.array([3, 2, 1]), 6, NegativeSamplingConfig(vector_size=4))
    >>> model.input.shape, model.output.shape, model.vectors().shape
    (torch.Size([3, 4]), torch.Size([3, 4]), torch.Size([3, 4]))
    """

    def __init__(
        self,
        counts: Longs,
        tokens: int,
        config: NegativeSamplingConfig,
        subwords: SubwordRows | None = None,
    ) -> None:
        self.config, self.tokens, self.subwords = config, tokens, subwords
        self.keep = keep_probabilities(counts, config.sample)
        self.negatives: AliasTable = negative_distribution(counts)
        self.batch_words = _batch_words(counts * self.keep, config, subwords)
        rows, size = subwords.num_rows if subwords else len(counts), config.vector_size
        self.input = random_vectors(rows, size, config.seed)
        self.output = aligned_rows(len(counts), size)

    def vectors(self) -> Tensor:
        """Return the vector of every word, (V, W)."""
        return self.subwords.average(self.input) if self.subwords else self.input

    def epoch_key(self, epoch: int) -> int:
        """Return the key of an epoch's random numbers."""
        return derive_key(self.config.seed, epoch)

    def subsample(self, segment: Segment, epoch: int) -> Segment:
        """Leave out tokens of frequent words at random."""
        keys = derive_keys(self.epoch_key(epoch), segment.positions)
        return segment.select(uniform(keys, KEEP_DRAW) < self.keep[segment.tokens])

    def learning_rate(self, epoch: int, position: int) -> float:
        """Return the learning rate at a token of the text: it decays linearly."""
        start, end = self.config.learning_rate, self.config.min_learning_rate
        progress = (epoch * self.tokens + position) / (self.config.epochs * self.tokens)
        return start + (end - start) * progress

    def train_segment(self, segment: Segment, epoch: int) -> LossSum:
        """Train with a segment of text; return the loss."""
        segment = self.subsample(segment, epoch)
        losses = [LossSum(0.0, 0.0)]
        for start in range(0, len(segment.tokens), self.batch_words):
            end = min(start + self.batch_words, len(segment.tokens))
            lr = self.learning_rate(epoch, int(segment.positions[start]))
            losses.append(
                self.train_batch(segment, self.draw_windows(segment, start, end, epoch), lr)
            )
        return LossSum(*map(sum, zip(*losses, strict=True)))

    def train_batch(self, segment: Segment, windows: Windows, learning_rate: float) -> LossSum:
        """Make one step with a batch of words."""
        words = segment.tokens[windows.contexts].astype(np.int64)  # (P,)
        predicted, groups = windows.targets, np.arange(len(words))
        if self.config.average:  # one prediction from all words of a context
            predicted, groups = np.unique(predicted, return_inverse=True)
        inputs = _means(self._input_vectors(words), groups, len(predicted))  # (E, W)
        outputs = torch.from_numpy(windows.outputs[predicted])  # (E, K)
        valid = torch.from_numpy(windows.valid[predicted])
        vectors = self.output[outputs]  # (E, K, W)
        logits = torch.einsum("ew,ekw->ek", inputs, vectors)
        labels = torch.zeros_like(logits)
        labels[:, 0] = 1
        losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
        factors = learning_rate * (labels - logits.sigmoid()) * valid  # (E, K)
        changes = torch.einsum("ek,ekw->ew", factors, vectors)
        steps = factors[:, :, None] * inputs[:, None]  # (E, K, W)
        self.output.index_add_(0, outputs.flatten(), steps.flatten(0, 1))
        # As in word2vec, each word of a context is changed by the whole gradient of their mean.
        self._add_to_inputs(words, changes[torch.from_numpy(groups)])
        return LossSum(float((losses * valid).sum()), float(valid.sum()))

    def draw_windows(self, segment: Segment, start: int, end: int, epoch: int) -> Windows:
        """Draw the size of the window and the negatives of each word of a batch."""
        config, centers = self.config, np.arange(start, end)
        keys = derive_keys(self.epoch_key(epoch), segment.positions[centers])
        reach = config.window - (derive_keys(keys, WINDOW_DRAW) % config.window).astype(np.int64)
        offsets = np.delete(np.arange(-config.window, config.window + 1), config.window)
        contexts = centers[:, None] + offsets  # (B, 2 window)
        inside = (contexts >= 0) & (contexts < len(segment.tokens))
        contexts = contexts.clip(0, len(segment.tokens) - 1)
        same = segment.documents[contexts] == segment.documents[centers][:, None]
        chosen = inside & same & (abs(offsets) <= reach[:, None])
        draws = derive_keys(keys, NEGATIVE_DRAW)[:, None]
        random = derive_keys(draws, np.arange(1, config.negative + 1))
        targets = segment.tokens[centers].astype(np.int64)[:, None]
        outputs = np.concatenate((targets, self.negatives.sample(random)), axis=1)  # (B, K)
        valid = outputs != targets
        valid[:, 0] = True
        return Windows(contexts[chosen], np.nonzero(chosen)[0], outputs, valid)

    def _input_vectors(self, words: Longs) -> Tensor:
        if self.subwords is None:
            return self.input[torch.from_numpy(words)]
        rows, sizes = self.subwords.of(words)
        offsets = torch.from_numpy(np.cumsum(sizes) - sizes)
        return embedding_bag(torch.from_numpy(rows), self.input, offsets, mode="mean")

    def _add_to_inputs(self, words: Longs, changes: Tensor) -> None:
        rows = words.astype(np.int64)
        if self.subwords is not None:
            rows, sizes = self.subwords.of(rows)
            changes = changes.repeat_interleave(torch.from_numpy(sizes), 0)
        self.input.index_add_(0, torch.from_numpy(rows), changes)


def _means(vectors: Tensor, groups: Longs, count: int) -> Tensor:
    index = torch.from_numpy(groups)
    sums = torch.zeros(count, vectors.shape[1]).index_add_(0, index, vectors)
    return sums / torch.bincount(index, minlength=count)[:, None]


def _batch_words(kept: Floats, config: NegativeSamplingConfig, subwords: SubwordRows | None) -> int:
    """Return the words of a batch: few enough that no vector makes too long a step."""
    shares = kept / kept.sum()
    most = float((subwords.shares(shares) if subwords else shares).max())
    predictions = (config.window + 1) * (config.negative + 1)  # of a token, on average
    return int(np.clip(MAX_STEP / config.learning_rate / predictions / most, *BATCH_WORDS))
