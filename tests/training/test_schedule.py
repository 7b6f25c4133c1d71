"""Schedules: those of transformers and of the papers, and what holds for all of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from firth.errors import Misuse
from firth.training.schedule import (
    SCHEDULES,
    Stages,
    constant,
    cosine,
    linear,
    multiplier,
    slanted,
    wsd,
)

STEPS, WARMUP = 200, 30
PARTS = st.floats(0, 1)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def rates(schedule: LambdaLR) -> list[float]:
    """The rate transformers gives to step 1, 2, …: its step 0 has none, and ours is its step 1."""
    return [schedule.lr_lambdas[0](step + 1) for step in range(STEPS)]


def progress() -> list[float]:
    """As the training loop asks for it."""
    return [(step + 1) / STEPS for step in range(STEPS)]


def test_linear_is_that_of_transformers() -> None:
    expected = rates(get_linear_schedule_with_warmup(optimizer(), WARMUP, STEPS))
    assert [linear(p, WARMUP / STEPS) for p in progress()] == pytest.approx(expected)


def test_cosine_is_that_of_transformers() -> None:
    expected = rates(get_cosine_schedule_with_warmup(optimizer(), WARMUP, STEPS))
    assert [cosine(p, WARMUP / STEPS, 0.0) for p in progress()] == pytest.approx(expected)


def test_cosine_stops_at_the_floor() -> None:
    """Brown et al. 2020: down to a tenth over the run; halfway, the mean of 1 and a tenth."""
    assert cosine(0.1 + 0.9 / 2, 0.1, 0.1) == pytest.approx(0.55)
    assert cosine(1.0, 0.1, 0.1) == pytest.approx(0.1)


def test_wsd_is_that_of_transformers() -> None:
    schedule = get_wsd_schedule(
        optimizer(), WARMUP, num_decay_steps=40, num_training_steps=STEPS, decay_type="linear"
    )
    ours = [wsd(p, WARMUP / STEPS, decay=0.2) for p in progress()]
    assert ours == pytest.approx(rates(schedule))


def test_the_decay_of_wsd_ends_at_the_floor_and_starts_after_the_warmup() -> None:
    assert wsd(0.9, 0.1, 0.2, decay=0.2) == pytest.approx(0.6)
    assert wsd(1.0, 0.1, 0.2, decay=0.2) == pytest.approx(0.2)
    assert [wsd(p, 0.5, 0.0, decay=0.9) for p in (0.25, 0.5, 0.75)] == [0.5, 1.0, 0.5]


def test_constant_is_that_of_transformers() -> None:
    expected = rates(get_constant_schedule_with_warmup(optimizer(), WARMUP))
    assert [constant(p, WARMUP / STEPS) for p in progress()] == pytest.approx(expected)


def test_slanted_is_the_formula_of_the_paper() -> None:
    """Howard & Ruder 2018, equation 3, with the values they train with."""
    total, cut_frac, ratio = 1000, 0.1, 32
    cut = math.floor(total * cut_frac)
    for t in range(total + 1):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
        expected = (1 + p * (ratio - 1)) / ratio
        assert slanted(t / total, cut_frac, 1 / ratio) == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
@given(progress=PARTS, warmup=PARTS, floor=PARTS)
def test_multipliers_are_parts(name: str, progress: float, warmup: float, floor: float) -> None:
    assert 0 <= multiplier(name, progress, warmup, floor) <= 1


@pytest.mark.parametrize("name", SCHEDULES)
@given(progress=PARTS, warmup=st.floats(0.01, 0.9), floor=PARTS)
def test_multipliers_do_not_jump(name: str, progress: float, warmup: float, floor: float) -> None:
    """The steepest slope is that of a warm-up of 0.01 or a decay from 0.9 on: 100 at most."""
    step = 1e-6
    before, after = (multiplier(name, p, warmup, floor) for p in (progress * (1 - step), progress))
    assert abs(after - before) <= 100 * step


@pytest.mark.parametrize("name", SCHEDULES)
@given(parts=st.tuples(PARTS, PARTS), warmup=st.floats(0.01, 1), floor=PARTS)
def test_warmups_go_up_to_one(
    name: str, parts: tuple[float, float], warmup: float, floor: float
) -> None:
    early, late = sorted(part * warmup for part in parts)
    assert multiplier(name, early, warmup, floor) <= multiplier(name, late, warmup, floor)
    assert multiplier(name, warmup, warmup, floor) == pytest.approx(1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_warmup_starts_at_the_top(name: str) -> None:
    assert multiplier(name, 0.0, 0.0, 0.0) == 1
    assert multiplier(name, 1 / 1000, 0.0, 0.5) > 0.99


def test_unknown_schedules_are_named_with_the_known() -> None:
    with pytest.raises(Misuse) as error:
        multiplier("exponential", 0.5, 0.1, 0.0)
    assert str(error.value) == (
        "There is no schedule 'exponential': choose one of linear, cosine, wsd, slanted, constant."
    )


def test_stages_change_after_their_part_of_the_steps() -> None:
    stages = Stages.parse("128:0.25, 256:.5, 512")
    for steps in (4, 100, 4000):
        sizes = [stages.at((step + 1) / steps) for step in range(steps)]
        assert sizes == [128] * (steps // 4) + [256] * (steps // 4) + [512] * (steps // 2)
    assert stages.largest == 512


def test_one_stage_and_a_written_end() -> None:
    assert [Stages.parse("128").at(p) for p in (0.0, 0.5, 1.0)] == [128] * 3
    assert Stages.parse("512:0.9,128:1") == Stages.parse("512:0.9,128")
    assert Stages.parse("512:0.9,128").largest == 512


NO_STAGES = (
    "-1 0 1.5 x 128:0.9 128,512 128:0,512 128:1,512 128:1.5,512 128:nan,512 128:-0.5,512 "
    "128:0.5,256:0.5,512 128:0.9,256:0.5,512 128:0.5,512:0.9 128:0.9,, 128:0.9:0.9,512 "
    "1_000 １２８"
)


@pytest.mark.parametrize("text", ["", *NO_STAGES.split()])
def test_what_is_no_schedule_of_sizes_is_shown_one(text: str) -> None:
    with pytest.raises(Misuse) as error:
        Stages.parse(text)
    assert str(error.value) == (
        f"{text!r} does not say which size holds when: write 128, or 128:0.9,512 "
        "for 128 in the first 0.9 of the run and 512 after."
    )
