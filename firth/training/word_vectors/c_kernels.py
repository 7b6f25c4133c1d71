"""The training loops of word vectors in C: `negative_sampling.c` and `glove.c`.

They are compiled at first use (`firth/quantization/c_library.py`). Without a compiler, or with
FIRTH_NATIVE=0, the plain versions in torch do the same more slowly, up to rounding.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firth.quantization.c_library import DISABLE_VARIABLE, Unavailable, load
from firth.training.word_vectors.glove import BLOCKS, Glove
from firth.training.word_vectors.matrices import aligned_rows
from firth.training.word_vectors.negative_sampling import LossSum, NegativeSampling
from firth.training.word_vectors.token_segments import Segment

CHUNK = 16  # as in negative_sampling.c
LOGGER = logging.getLogger("firth")


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class NegativeSamplingJob(ctypes.Structure):
    """`Job` of negative_sampling.c."""

    _fields_ = (
        *_fields(ctypes.c_void_p, "input output tokens documents positions"),
        *_fields(ctypes.c_void_p, "subword_starts subwords thresholds aliases"),
        *_fields(ctypes.c_int64, "count vocab_size row_size window negative average"),
        *_fields(ctypes.c_int64, "batch_size threads"),
        *_fields(ctypes.c_uint64, "key"),
        *_fields(ctypes.c_double, "start_rate end_rate trained total"),
        *_fields(ctypes.c_void_p, "vectors input_steps output_steps coefficients outputs losses"),
    )


class GloveJob(ctypes.Structure):
    """`Job` of glove.c."""

    _fields_ = (
        *_fields(ctypes.c_void_p * 2, "vectors squares biases bias_squares"),
        *_fields(ctypes.c_void_p, "first second targets weights starts"),
        *_fields(ctypes.c_int64, "row_size threads"),
        *_fields(ctypes.c_double, "learning_rate"),
        *_fields(ctypes.c_void_p, "losses"),
    )


def kernels_available() -> bool:
    """Return whether the kernels can be used here."""
    return os.environ.get(DISABLE_VARIABLE) != "0" and _library("negative_sampling") is not None


def train_segment(model: NegativeSampling, segment: Segment, epoch: int, threads: int) -> LossSum:
    """Compute `model.train_segment(segment, epoch)` with `threads` threads.

    The loss is that of every 16th word.
    """
    segment, config, subwords = model.subsample(segment, epoch), model.config, model.subwords
    chunks, outputs = -(-model.batch_words // CHUNK), config.negative + 1
    losses = np.zeros((chunks, 2))
    size = config.vector_size
    arrays = {  # kept alive during the call
        **segment._asdict(),
        **model.negatives._asdict(),
        "input": model.input,
        "output": model.output,
        "vectors": aligned_rows(model.batch_words + 2 * config.window, size),
        "input_steps": aligned_rows(chunks * (CHUNK + 2 * config.window), size),
        "output_steps": aligned_rows(model.batch_words * outputs, size),
        "coefficients": torch.zeros(model.batch_words * outputs),
        "outputs": np.zeros(model.batch_words * outputs, dtype=np.int32),
        "losses": losses,
    }
    if subwords is not None:
        arrays |= {"subword_starts": subwords.starts, "subwords": subwords.rows}
    job = NegativeSamplingJob(
        **{name: _address(array) for name, array in arrays.items()},
        count=len(segment.tokens),
        vocab_size=len(model.output),
        row_size=model.output.stride(0),
        window=config.window,
        negative=config.negative,
        average=config.average,
        batch_size=model.batch_words,
        threads=threads,
        key=model.epoch_key(epoch),
        start_rate=config.learning_rate,
        end_rate=config.min_learning_rate,
        trained=epoch * model.tokens,
        total=config.epochs * model.tokens,
    )
    _library("negative_sampling").firth_negative_sampling(ctypes.byref(job))
    return LossSum(*losses.sum(0).tolist())


def train_round(model: Glove, round: int, threads: int) -> LossSum:
    """Compute `model.train_round(round)` with `threads` threads, one entry after the other."""
    losses = np.zeros((BLOCKS, 2))
    pairs = model.pairs
    sides = (model.vectors, model.squares, model.biases, model.bias_squares)
    arrays = (pairs.first, pairs.second, pairs.targets, pairs.weights, pairs.starts)
    job = GloveJob(
        *((ctypes.c_void_p * 2)(*(_address(tensor) for tensor in side)) for side in sides),
        *(_address(array) for array in arrays),
        row_size=model.vectors[0].stride(0),
        threads=threads,
        learning_rate=model.config.learning_rate,
        losses=_address(losses),
    )
    _library("glove").firth_glove_round(ctypes.byref(job), ctypes.c_int64(round))
    return LossSum(*losses.sum(0).tolist())


def _address(array: Tensor | NDArray[Any]) -> int:
    return array.data_ptr() if isinstance(array, Tensor) else array.ctypes.data


@cache
def _library(name: str) -> Any:
    try:
        return load(Path(__file__).with_name(f"{name}.c"))
    except Unavailable as error:
        reason = " ".join(str(error).split())
        LOGGER.log(error.level, "Training with torch instead of %s.c: %s.", name, reason)
        return None
