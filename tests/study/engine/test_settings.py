"""The settings of studies: their minimums, and inputs that a study does not use."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest

import firth
from firth.study.engine.settings import make_settings
from firth.study.registry import all_studies, study_named
from firth.utils.errors import UsageError

NUMBERS = (int, float, tuple[int, ...], tuple[float, ...])


def test_numbers_have_a_minimum_that_their_defaults_keep() -> None:
    for study in all_studies():
        hints = get_type_hints(study.settings, include_extras=True)
        numbers = {name: hint for name, hint in hints.items() if hint.__origin__ in NUMBERS}
        assert all(hint.__metadata__[0].min is not None for hint in numbers.values())
        for budget in ({}, study.medium, study.large):
            values = {**vars(study.settings()), **budget}
            make_settings(study, "small", {name: values[name] for name in numbers})


@pytest.mark.parametrize(
    ("study", "changed"),
    [
        ("labels", {"labels": "0,10"}),
        ("labels", {"labels": (10, None)}),
        ("labels", {"reference_labels": "0"}),
        ("labels", {"batch_size": 0}),
        ("strategies", {"labels": "0"}),
        ("scaling", {"largest_tokens": "0"}),
        ("learning-rate", {"factors": "0,1"}),
    ],
)
def test_numbers_below_the_minimum_are_refused(study: str, changed: dict[str, Any]) -> None:
    (name,) = changed
    with pytest.raises(UsageError, match=f"{name} must be at least"):
        make_settings(study_named(study), "small", changed)


@pytest.mark.parametrize("study", ["labels", "strategies", "domain-shift"])
def test_a_second_model_is_refused(study: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one model"):
        firth.run_study(study, models=("stories-encoder", "stories-decoder"), out=tmp_path)
