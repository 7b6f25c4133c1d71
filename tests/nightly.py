"""Cases of a parametrized test that run every time, and those that run in `make nightly`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_nightly(cases: Iterable[Any], *, always: Collection[Any]) -> list[Any]:
    """Mark all cases but some as nightly; a case of several arguments is a tuple."""
    given = list(cases)
    assert set(always) <= set(given), set(always) - set(given)
    return [case if case in always else _nightly(case) for case in given]


def _nightly(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.nightly)
