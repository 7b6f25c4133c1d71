"""Steps in which blocks are compiled do not count as training time."""

from __future__ import annotations

import numpy as np
import pytest

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch
from firth.objectives.causal import causal
from firth.training.config import TrainingConfig
from firth.training.runtime import Compilations


def batch(tokens: int, bidirectional: bool = False) -> Batch:
    packed = PackedSequences.join([np.arange(5, 5 + tokens)], np.zeros(1, np.uint64))
    if bidirectional:
        return Batch(inputs=packed, prefix=np.array([tokens]), predictions={})
    return causal(packed)


@pytest.mark.parametrize(
    ("parallel", "compiles", "due"),
    [
        ("replicate", "true", [True, False, False, True, False]),
        ("shard", "true", [True, True, False, True, False]),  # for any number of tokens at last
        ("shard", "false", [False] * 5),
    ],
)
def test_blocks_are_compiled_in_the_first_steps_of_each_kind(
    parallel: str, compiles: str, due: list[bool]
) -> None:
    compilations = Compilations(TrainingConfig(steps=9, parallel=parallel, compile=compiles))
    batches = [batch(8), batch(9), batch(10), batch(8, bidirectional=True), batch(8)]
    assert [compilations.is_due(one) for one in batches] == due
