"""Word lists and tables written as text."""

from __future__ import annotations

from functools import cache


def words(text: str) -> tuple[str, ...]:
    """Split at white space."""
    return tuple(text.split())


@cache
def phrases(text: str) -> tuple[str, ...]:
    """Split at semicolons; line breaks count as spaces.

    >>> phrases("at school; in the kitchen")
    ('at school', 'in the kitchen')
    """
    return tuple(" ".join(part.split()) for part in text.split(";"))


def pairs(text: str) -> dict[str, str]:
    """Read a table of two columns.

    >>> pairs("hammer: drive nails; saw: cut wood")
    {'hammer': 'drive nails', 'saw': 'cut wood'}
    """
    rows = (row.partition(": ") for row in phrases(text))
    return {key: value for key, _, value in rows}


def table(text: str) -> dict[str, tuple[str, ...]]:
    """Read a table whose rows have a name and several values.

    >>> table("France: Paris, French; Spain: Madrid, Spanish")
    {'France': ('Paris', 'French'), 'Spain': ('Madrid', 'Spanish')}
    """
    return {key: tuple(row.split(", ")) for key, row in pairs(text).items()}
