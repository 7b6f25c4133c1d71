"""Tables in memory: lists of rows, and tables of pandas, polars, pyarrow and `datasets`.

None of these libraries is imported: an object is recognised by its methods.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from firth.utils.arguments import shown
from firth.utils.errors import InputError, UsageError

KINDS = "a string, a Path, a list of texts or rows, or a table of pandas, pyarrow or datasets"
MAX_EXACT = 1 << 53  # below this, 64-bit floats hold every integer
Fields = Sequence[Sequence[str]]  # the possible names of a tuple's values, by their number


@dataclass(frozen=True)
class MemoryTable:
    """Rows in memory; its name is the argument's, in backquotes."""

    name: str
    values: Iterable[Any]  # dicts, tuples or texts; can be iterated several times
    fields: Fields = (("text",),)

    def __str__(self) -> str:
        return self.name

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(self.values, 1):
            yield self.named(number, row)

    def named(self, number: int, row: Any) -> dict[str, Any]:
        """Return a row as a dict; `number` is for the error of a row of another kind."""
        where = f"{self.name} row {number}"
        if isinstance(row, str):
            return {"text": row}
        if isinstance(row, Mapping):
            return {str(name): _plain(value) for name, value in row.items()}
        if not isinstance(row, Sequence) or isinstance(row, bytes):
            kind = type(row).__name__
            raise InputError(f"{where} is {kind} ({row!r:.40}), not a text, a dict or a tuple.")
        names = next((names for names in self.fields if len(names) == len(row)), None)
        if names is None:
            known = " or ".join(f"({', '.join(names)})" for names in self.fields)
            raise InputError(f"{where} has {len(row)} values; give {known}, or a dict.")
        return dict(zip(names, map(_plain, row), strict=True))

    @cached_property
    def sha256(self) -> str:
        """The hash of all rows; bad ones, which are skipped, do not count."""
        digest = hashlib.sha256()
        for number, row in enumerate(self.values, 1):
            with suppress(InputError):
                line = json.dumps(self.named(number, row), default=str)
                digest.update(line.encode() + b"\n")
        return digest.hexdigest()


Source = str | Path | MemoryTable  # where the rows or texts of a function come from
Data = str | Path | Iterable[Any]  # what users give: a path, a list, a DataFrame, a Dataset, …


def as_source(
    data: Data | None, name: str, columns: str = "text", *, predicts: bool = False
) -> Source:
    """Return a path as it is, and any other data as a table called `name`.

    `columns` are those of a task, which name the values of a tuple: "text, label". For prediction,
    labels may be missing.

    >>> rows = as_source([("Good.", 1), {"text": "Bad.", "label": 0}], "train", "text, label")
    >>> print(rows, list(rows))
    `train` [{'text': 'Good.', 'label': 1}, {'text': 'Bad.', 'label': 0}]
    >>> list(as_source({"text": ["Good.", "Bad."]}, "train"))
    [{'text': 'Good.'}, {'text': 'Bad.'}]
    """
    if isinstance(data, str | Path):
        return data
    fields = _field_names(columns)
    if predicts:
        fields = [names[:-1] for names in fields if len(names) > 1] + fields
    rows = data.values if isinstance(data, MemoryTable) else table_rows(data, name)
    return MemoryTable(f"`{name}`", rows, fields)


def _field_names(columns: str) -> list[list[str]]:
    """Return the names in each variant of a task's columns."""
    columns = re.sub(r" \(.*?\)", "", columns)  # explanations
    fields = [names.split(", ") for names in columns.split(" · ")]
    return [names for names in fields if all(map(str.isidentifier, names))]


def input_names(columns: str) -> list[str]:
    """Return the names of the inputs of a task.

    >>> input_names("text_a, text_b, label"), input_names("text, label · text_a, text_b, label")
    (['text_a', 'text_b'], ['text'])
    """
    return next((names[:-1] for names in _field_names(columns)), [])


def is_row(data: Any) -> bool:
    """Return whether a dict is one row: one of its values is a text, not a column.

    >>> is_row({"question": "Who?", "context": "Ann ran."}), is_row({"text": ["Good.", "Bad."]})
    (True, False)
    """
    return isinstance(data, Mapping) and any(isinstance(value, str) for value in data.values())


def is_missing(value: Any) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or (isinstance(value, float) and value != value)


def is_in_memory(name: str | Path) -> bool:
    """Return whether the name of a source is that of a table in memory."""
    return str(name).startswith("`")


def table_rows(data: Any, name: str) -> Iterable[Any]:
    """Return the rows of any kind of table, to be iterated several times."""
    if isinstance(data, str | bytes | type):
        raise UsageError(f"`{name}` is {KINDS}, not {shown(data)}.")
    _check_columns(getattr(data, "column_names", getattr(data, "columns", ())), name)
    if isinstance(data, Mapping):
        return _rows_of_columns(data, name)
    if hasattr(data, "column_names") and hasattr(data, "features"):  # datasets
        return _Rows(lambda: _dataset_rows(data))
    if hasattr(data, "to_batches"):  # pyarrow: a few rows at a time
        return _Rows(lambda: (row for part in data.to_batches() for row in part.to_pylist()))
    for method in ("to_dicts", "to_pylist"):  # polars; a record batch or an array of pyarrow
        if hasattr(data, method):
            return _Rows(getattr(data, method))
    if hasattr(data, "notna") and hasattr(data, "astype"):  # pandas
        data = _with_integers(data)
        whole = data.astype(object).where(data.notna(), None)
        return _Rows(lambda: whole.to_dict("records") if hasattr(data, "columns") else iter(whole))
    rows = data.tolist() if hasattr(data, "tolist") else data  # an array of texts
    if isinstance(rows, str) or not isinstance(rows, Iterable):
        raise UsageError(f"`{name}` is {KINDS}, not {shown(data)}.")
    return rows if isinstance(rows, Sequence) or iter(rows) is not rows else list(rows)


def _check_columns(names: Any, name: str) -> None:
    """Raise an error if two columns have one name: pandas and pyarrow allow it."""
    counts = Counter(map(str, names)) if isinstance(names, Iterable) else Counter[str]()
    if repeated := [one for one, count in counts.items() if count > 1]:
        raise InputError(f"`{name}`: two columns are called {repeated[0]!r}; rename one.")


def _with_integers(data: Any) -> Any:
    """Restore integers, which pandas makes floats in a column that has or had missing values."""
    if hasattr(data, "columns"):
        return data.apply(_with_integers) if len(data) else data
    if data.dtype.kind != "f":
        return data
    values = data.dropna()
    is_whole = (values % 1 == 0) & (values.abs() < MAX_EXACT)
    return data.astype("Int64") if is_whole.all() else data


@dataclass(frozen=True)
class _Rows:
    """Rows that are made again whenever they are iterated."""

    make: Callable[[], Iterable[Any]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


def _rows_of_columns(data: Mapping[str, Any], name: str) -> Iterable[Any]:
    """Return the rows of a dict of columns."""
    if any(hasattr(column, "column_names") for column in data.values()):
        splits = ", ".join(map(repr, data))
        raise UsageError(f"`{name}` has the splits {splits}: give one of them, such as data[…].")
    columns = {key: list(column) for key, column in data.items() if not isinstance(column, str)}
    if len(columns) < len(data) or len(set(map(len, columns.values()))) > 1:
        raise UsageError(
            f"`{name}` is a dict: give a list of dicts, or a dict of columns that are equally long."
        )
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _dataset_rows(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `datasets.Dataset`, with the names of its labels for their numbers."""
    features = data.features or {}
    inner = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    labels = {name: part.names for name, part in inner.items() if hasattr(part, "names")}
    for row in data:
        yield {**row, **{name: _label(row[name], names) for name, names in labels.items()}}


def _label(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_label(one, names) for one in value]
    return names[value] if isinstance(value, int) and value >= 0 else None  # -1: hidden


def _plain(value: Any) -> Any:
    """Convert values of numpy, and tuples, to those of JSON; NaN is a missing value."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return None if is_missing(value) else value
