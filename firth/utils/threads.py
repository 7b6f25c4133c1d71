"""Limit the threads of numerical libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let scikit-learn and NumPy use one thread, and restore their number afterwards.

    On small matrices several threads mostly wait for each other: with other programs on the same
    CPU cores, a linear probe of 100 texts took 24 s instead of 2.4 s. Also a decorator.
    """
    import sklearn.linear_model
    import sklearn.manifold  # noqa: F401
    from threadpoolctl import threadpool_limits  # a requirement of scikit-learn

    with threadpool_limits(1):
        yield
