"""Schedules equal those of transformers and of the papers; properties of all of them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from firth.training.config import TrainingConfig
from firth.training.schedule import (
    SCHEDULES,
    StagedValue,
    constant,
    cosine,
    linear,
    lr_multiplier,
    slanted,
    warmup_fraction,
    wsd,
)
from firth.utils.errors import UsageError

STEPS, WARMUP = 200, 30
PARTS = st.floats(0, 1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (linear, lambda sgd: get_linear_schedule_with_warmup(sgd, WARMUP, STEPS)),
        (
            partial(cosine, min_ratio=0.0),
            lambda sgd: get_cosine_schedule_with_warmup(sgd, WARMUP, STEPS),
        ),
        (
            partial(wsd, decay=0.2),
            lambda sgd: get_wsd_schedule(sgd, WARMUP, 40, STEPS, decay_type="linear"),
        ),
        (constant, lambda sgd: get_constant_schedule_with_warmup(sgd, WARMUP)),
    ],
    ids=["linear", "cosine", "wsd", "constant"],
)
def test_schedules_equal_transformers(ours: Any, theirs: Any) -> None:
    """Our step n has the learning rate of theirs; their step 0 has 0."""
    schedule = theirs(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0))
    expected = [schedule.lr_lambdas[0](step + 1) for step in range(STEPS)]
    found = [ours((step + 1) / STEPS, WARMUP / STEPS) for step in range(STEPS)]
    assert found == pytest.approx(expected)


def test_cosine_ends_at_the_minimum() -> None:
    """Brown et al. 2020: down to a tenth over the run; halfway, the mean of 1 and a tenth."""
    assert cosine(0.1 + 0.9 / 2, 0.1, 0.1) == pytest.approx(0.55)
    assert cosine(1.0, 0.1, 0.1) == pytest.approx(0.1)


def test_the_decay_of_wsd() -> None:
    assert wsd(0.9, 0.1, 0.2, decay=0.2) == pytest.approx(0.6)
    assert wsd(1.0, 0.1, 0.2, decay=0.2) == pytest.approx(0.2)
    assert [wsd(p, 0.5, 0.0, decay=0.9) for p in (0.25, 0.5, 0.75)] == [0.5, 1.0, 0.5]


def test_slanted_triangular_equals_the_paper() -> None:
    """Howard & Ruder 2018, equation 3, with the values they train with."""
    total, cut_frac, ratio = 1000, 0.1, 32
    cut = math.floor(total * cut_frac)
    for t in range(total + 1):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
        expected = (1 + p * (ratio - 1)) / ratio
        assert slanted(t / total, cut_frac, 1 / ratio) == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
@given(progress=PARTS, warmup=PARTS, min_ratio=PARTS)
def test_multipliers_are_between_0_and_1(
    name: str, progress: float, warmup: float, min_ratio: float
) -> None:
    assert 0 <= lr_multiplier(name, progress, warmup, min_ratio) <= 1


@pytest.mark.parametrize("name", SCHEDULES)
@given(progress=PARTS, warmup=st.floats(0.01, 0.9), min_ratio=PARTS)
def test_multipliers_are_continuous(
    name: str, progress: float, warmup: float, min_ratio: float
) -> None:
    """The steepest slope is that of a warm-up of 0.01 or a decay from 0.9 on: 100 at most."""
    step = 1e-6
    before, after = (
        lr_multiplier(name, p, warmup, min_ratio) for p in (progress * (1 - step), progress)
    )
    assert abs(after - before) <= 100 * step


@pytest.mark.parametrize("name", SCHEDULES)
@given(parts=st.tuples(PARTS, PARTS), warmup=st.floats(0.01, 1), min_ratio=PARTS)
def test_warmups_rise_to_one(
    name: str, parts: tuple[float, float], warmup: float, min_ratio: float
) -> None:
    early, late = sorted(part * warmup for part in parts)
    assert lr_multiplier(name, early, warmup, min_ratio) <= lr_multiplier(
        name, late, warmup, min_ratio
    )
    assert lr_multiplier(name, warmup, warmup, min_ratio) == pytest.approx(1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_warmup_the_multiplier_starts_at_one(name: str) -> None:
    assert lr_multiplier(name, 0.0, 0.0, 0.0) == 1
    assert lr_multiplier(name, 1 / 1000, 0.0, 0.5) > 0.99


@pytest.mark.parametrize("budget", [{"steps": 200}, {"tokens": 200 * 8192}, {"minutes": 200 / 60}])
def test_a_warmup_of_one_or_more_is_a_number_of_steps(budget: dict[str, Any]) -> None:
    """The learning rate of each step is that of the same warm-up as a fraction, for any budget."""
    config = TrainingConfig(warmup=WARMUP, **budget)
    for step in range(1, STEPS + 1):
        progress = config.progress(step, step * 8192, float(step))
        fraction = warmup_fraction(config.warmup, step, progress)
        assert fraction == pytest.approx(WARMUP / STEPS)
        expected = linear(step / STEPS, WARMUP / STEPS)
        assert linear(progress, fraction) == pytest.approx(expected)
    assert warmup_fraction(0.15, 1, 0.5) == 0.15


def test_a_run_shorter_than_its_warmup_only_warms_up() -> None:
    rates = [linear(p, warmup_fraction(50, step, p)) for step, p in ((5, 0.5), (10, 1.0))]
    assert rates == pytest.approx([0.5, 1.0])  # a fraction of the run is at most 1


@pytest.mark.parametrize("warmup", [-0.1, 1.5, math.inf, math.nan])
def test_a_warmup_is_a_fraction_or_a_whole_number(warmup: float) -> None:
    with pytest.raises(UsageError, match="warmup"):
        TrainingConfig(steps=10, warmup=warmup)
    for valid in (0, 0.99, 1, 500):
        assert TrainingConfig(steps=10, warmup=valid).warmup == valid


def test_unknown_schedules_are_named_with_the_known() -> None:
    with pytest.raises(UsageError) as error:
        lr_multiplier("exponential", 0.5, 0.1, 0.0)
    assert "'exponential'" in str(error.value)
    assert all(name in str(error.value) for name in SCHEDULES)


def test_stages_change_after_their_fraction_of_the_run() -> None:
    stages = StagedValue.parse("128:0.25, 256:.5, 512")
    for steps in (4, 100, 4000):
        sizes = [stages.at((step + 1) / steps) for step in range(steps)]
        assert sizes == [128] * (steps // 4) + [256] * (steps // 4) + [512] * (steps // 2)
    assert stages.largest == 512


def test_one_stage_and_a_written_end() -> None:
    assert [StagedValue.parse("128").at(p) for p in (0.0, 0.5, 1.0)] == [128] * 3
    assert StagedValue.parse("512:0.9,128:1") == StagedValue.parse("512:0.9,128")
    assert StagedValue.parse("512:0.9,128").largest == 512


INVALID_STAGES = (
    "-1 0 1.5 x 128:0.9 128,512 128:0,512 128:1,512 128:1.5,512 128:nan,512 128:-0.5,512 "
    "128:0.5,256:0.5,512 128:0.9,256:0.5,512 128:0.5,512:0.9 128:0.9,, 128:0.9:0.9,512 "
    "1_000 １２８"
)


@pytest.mark.parametrize("text", ["", *INVALID_STAGES.split()])
def test_invalid_stages(text: str) -> None:
    with pytest.raises(UsageError) as error:
        StagedValue.parse(text)
    assert repr(text) in str(error.value)
    assert "128:0.9,512" in str(error.value)
