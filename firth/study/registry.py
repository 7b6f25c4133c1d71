"""The table of studies, in the order of the lectures; a module is imported when it is needed."""

from __future__ import annotations

from importlib import import_module

from firth.study.engine.study import Study
from firth.utils.errors import UsageError, suggest

STUDIES = {  # name: the module with its STUDY
    "labels": "labels",
    "architectures": "architectures",
    "t5-table": "t5_table",
    "context": "context",
    "masking": "masking",
    "scaling": "scaling",
    "layers": "layers",
    "strategies": "strategies",
    "learning-rate": "learning_rate",
    "forgetting": "forgetting",
    "domain-shift": "domain_shift",
    "timeline": "timeline",
    "claims": "claims",
}


def study_named(name: str) -> Study:
    """Return the study with this name."""
    if name not in STUDIES:
        raise UsageError(f"There is no study {name!r}; {suggest(name, STUDIES)}")
    study = import_module(f"firth.study.{STUDIES[name]}").STUDY
    assert isinstance(study, Study)
    return study


def all_studies() -> list[Study]:
    """Return all studies."""
    return [study_named(name) for name in STUDIES]
