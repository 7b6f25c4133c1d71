"""Cases of a parametrized test that run every time, and those that run in `make nightly`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_nightly(cases: Iterable[Any], *, always: Collection[Any]) -> list[Any]:
    """Mark all cases but some as nightly; a case of several arguments is a tuple."""
    given = list(cases)
    assert all(case in given for case in always), always
    return [case if case in always else _nightly(case) for case in given]


def pairs_mostly_nightly(rows: Iterable[Any], columns: Iterable[Any]) -> list[Any]:
    """Pair every row with every column; those that run every time have each of both once or more.

    >>> [case for case in pairs_mostly_nightly("ab", "xyz") if type(case) is tuple]
    [('a', 'x'), ('a', 'z'), ('b', 'y')]
    """
    first, second = list(rows), list(columns)
    count = max(len(first), len(second))
    always = {(first[i % len(first)], second[i % len(second)]) for i in range(count)}
    return mostly_nightly(itertools.product(first, second), always=always)


def repeats_nightly(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Mark as nightly the cases of which every value occurs in a case before.

    >>> cases = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    >>> [case for case in repeats_nightly(cases) if type(case) is tuple]
    [('a', 'x'), ('a', 'y'), ('b', 'x')]
    """
    given, seen = list(cases), set()
    always = []
    for case in given:
        values = set(enumerate(case))
        if not values <= seen:
            always.append(case)
        seen |= values
    return mostly_nightly(given, always=always)


def _nightly(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.nightly)
