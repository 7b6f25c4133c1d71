"""Fit word vectors to the text of shards: skip-gram, CBOW, fastText and GloVe."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from firth.models.static_vectors import StaticVectors
from firth.models.static_vectors_config import StaticVectorsConfig
from firth.training.fitting import FitInputs
from firth.training.loop import Diverged
from firth.training.word_vectors import c_kernels
from firth.training.word_vectors.cooccurrences import count_cooccurrences
from firth.training.word_vectors.glove import BLOCKS, Glove, GloveConfig, Pairs
from firth.training.word_vectors.negative_sampling import (
    LossSum,
    NegativeSampling,
    NegativeSamplingConfig,
)
from firth.training.word_vectors.neighbours import describe_neighbours
from firth.training.word_vectors.subword_rows import SubwordRows, find_rows
from firth.training.word_vectors.token_segments import TokenSegments
from firth.utils.errors import InputError, UsageError

# The greatest values of options are sizes of arrays in C; windows of GloVe are 8 bits of a key.
LIMITS = {
    "epochs": (1, math.inf),
    "window": (1, 64),
    "negative": (1, 63),
    "sample": (0, 1),
    "learning_rate": (1e-9, 10),
    "min_learning_rate": (0, 10),
    "x_max": (1e-9, math.inf),
    "exponent": (0, 10),
}
Settings = TypeVar("Settings", NegativeSamplingConfig, GloveConfig)


def default_options(config: NegativeSamplingConfig | GloveConfig) -> dict[str, int | float]:
    """Return the fields of a config that `--set` changes.

    >>> default_options(GloveConfig())["window"]
    10
    """
    return {name: value for name, value in vars(config).items() if name in LIMITS}


def check_options(options: Mapping[str, Any]) -> None:
    """Raise a UsageError for an option outside its limits."""
    for name, value in options.items():
        least, most = LIMITS[name]
        if not least <= value <= most:
            raise UsageError(f"{name} is {value}; it must be from {least:g} to {most:g}.")


def fit_skipgram(inputs: FitInputs) -> StaticVectors:
    """Train skip-gram vectors (Mikolov et al. 2013b)."""
    return _fit_negative_sampling(inputs, average=False)


def fit_cbow(inputs: FitInputs) -> StaticVectors:
    """Train CBOW vectors (Mikolov et al. 2013a)."""
    return _fit_negative_sampling(inputs, average=True)


def fit_fasttext(inputs: FitInputs) -> StaticVectors:
    """Train skip-gram vectors of words and character n-grams (Bojanowski et al. 2017)."""
    config, tokenizer = _config(inputs), inputs.tokenizer
    if config.subwords is None or not 1 <= config.min_n <= config.max_n:
        raise UsageError(
            f"fasttext needs buckets > 0 and 1 <= min_n <= max_n, not model.buckets="
            f"{config.buckets}, model.min_n={config.min_n} and model.max_n={config.max_n}."
        )
    special = set(tokenizer.special_ids.values())
    words = [tokenizer.backend.id_to_token(word) for word in range(config.vocab_size)]
    known = [None if id in special else word for id, word in enumerate(words)]
    return _fit_negative_sampling(inputs, average=False, subwords=find_rows(known, config.subwords))


def fit_glove(inputs: FitInputs) -> StaticVectors:
    """Count co-occurrences and train GloVe vectors (Pennington et al. 2014)."""
    settings, text = _settings(GloveConfig, inputs), _text(inputs)
    report = _Report(inputs, settings.epochs * text.tokens)
    inputs.progress("counting pairs of words", 0, 1)
    counted = count_cooccurrences(text, len(text.used), settings.window)
    if not len(counted.first):
        raise InputError(f"{inputs.shards.path} has no two known words beside each other.")
    model = Glove(len(text.used), Pairs(counted, settings), settings)
    for epoch in range(settings.epochs):
        for round in range(BLOCKS):
            if c_kernels.kernels_available():
                loss = c_kernels.train_round(model, round, torch.get_num_threads())
            else:
                loss = model.train_round(round)
            report(epoch * text.tokens + (round + 1) * text.tokens // BLOCKS, loss)
    return _network(inputs, text, model.final_vectors())


def _fit_negative_sampling(
    inputs: FitInputs, *, average: bool, subwords: SubwordRows | None = None
) -> StaticVectors:
    settings, text = _settings(NegativeSamplingConfig, inputs), _text(inputs)
    settings = replace(settings, average=average)
    model = NegativeSampling(text.counts, text.tokens, settings, subwords)
    report = _Report(inputs, settings.epochs * text.tokens)
    for epoch in range(settings.epochs):
        for segment in text:
            if c_kernels.kernels_available():
                loss = c_kernels.train_segment(model, segment, epoch, torch.get_num_threads())
            else:
                loss = model.train_segment(segment, epoch)
            report(epoch * text.tokens + int(segment.positions.max(initial=0)) + 1, loss)
    network = _network(inputs, text, model.vectors())
    if subwords is not None and network.ngrams is not None:
        rows = model.input[len(text.used) :]
        network.ngrams.weight.data.zero_()[torch.from_numpy(subwords.buckets)] = rows
    return network


@dataclass
class _Report:
    """Log the loss, the progress and the speed of training."""

    inputs: FitInputs
    total: int  # tokens of all epochs
    steps: int = 0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.time = time.monotonic()

    def __call__(self, tokens: int, loss: LossSum) -> None:
        """Log what was trained since the last call, up to a number of tokens."""
        if loss.terms == 0:  # no word of this part has a context
            return
        mean, now = loss.sum / loss.terms, time.monotonic()
        if not math.isfinite(mean):
            raise Diverged("The vectors diverged; lower the learning rate: --set learning_rate=….")
        speed = (tokens - self.tokens) / max(now - self.time, 1e-9)
        self.steps, self.tokens, self.time = self.steps + 1, tokens, now
        self.inputs.log(
            {
                "step": self.steps,
                "loss": mean,
                "tokens": tokens,
                "tokens_per_second": speed,
                "progress": min(1.0, tokens / self.total),
            }
        )


def _settings(make: Callable[..., Settings], inputs: FitInputs) -> Settings:
    return make(vector_size=inputs.config.hidden_size, seed=inputs.seed, **inputs.options)


def _config(inputs: FitInputs) -> StaticVectorsConfig:
    assert isinstance(inputs.config, StaticVectorsConfig)
    return replace(inputs.config, unknown_token_id=inputs.tokenizer.unknown_id)


def _text(inputs: FitInputs) -> TokenSegments:
    """Return the text without special and unknown tokens."""
    ignored, unknown = set(inputs.tokenizer.special_ids.values()), inputs.tokenizer.unknown_id
    if unknown is not None:
        ignored.add(unknown)
    text = TokenSegments(inputs.shards, inputs.config.vocab_size, ignored)
    if (known := int(text.counts.sum())) < 2:
        raise InputError(
            f"{inputs.shards.path} has {known} known words; vectors of words need at least two."
        )
    return text


def _network(inputs: FitInputs, text: TokenSegments, vectors: Tensor) -> StaticVectors:
    """Return the vectors as a network, and show neighbours of some words."""
    network = StaticVectors(_config(inputs))
    network.tokens.weight.data.copy_(vectors)
    network.tokens.weight.data[~torch.from_numpy(text.used)] = 0  # never trained
    for note in describe_neighbours(network.tokens.weight.data, text.counts, inputs.tokenizer):
        inputs.note(note)
    return network
