"""The settings of runs side by side: those that differ first, equal ones in a second table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firth.jobs.run_report.run_record import RunRecord
from firth.utils.figures import DataTable

# Groups of settings, by the names that `--set` gives them.
GROUPS = {"training": "", "optimizer": "", "objective_options": "objective.", "metadata": "task."}
ABSENT = "–"  # a run of another kind or version has no such setting
Setting = tuple[str, tuple[str, ...]]  # its name, and its value in each run


@dataclass(frozen=True)
class SettingsTable:
    """Settings of runs of one kind."""

    names: tuple[str, ...]  # of the runs
    different: tuple[Setting, ...]
    equal: tuple[Setting, ...]

    def figures(self, title: str) -> tuple[DataTable, ...]:
        """Return a table of the settings that differ, and a folded one of the others."""
        columns = ("setting", *self.names)
        marked = frozenset(
            (row, column)
            for row, (_, values) in enumerate(self.different)
            for column, value in enumerate(values, 1)
            if value != values[0]
        )
        different = DataTable(
            f"{title}: {len(self.different)} settings differ" if self.different else title,
            columns,
            tuple((name, *values) for name, values in self.different),
            marked=marked,
        )
        values = tuple((name, values[0]) for name, values in self.equal)
        one = len(self.names) == 1
        equal = f"{title}: {len(values)} settings" + ("" if one else " are equal in all runs")
        same = DataTable(equal, ("setting", "value"), values, texts=True, folded=True)
        return (different, same) if self.different else (same,)

    def by_value(self) -> tuple[tuple[str, str], ...]:
        """Return each setting that differs with its values and their runs, for many runs.

        >>> SettingsTable(("a", "b", "c"), (("seed", ("1", "2", "1")),), ()).by_value()
        (('seed', '1 (a, c); 2 (b)'),)
        """
        rows = []
        for name, values in self.different:
            runs: dict[str, list[str]] = {}
            for run, value in zip(self.names, values, strict=True):
                runs.setdefault(value, []).append(run)
            parts = (f"{value} ({', '.join(names)})" for value, names in runs.items())
            rows.append((name, "; ".join(parts)))
        return tuple(rows)


def settings_table(records: Sequence[RunRecord]) -> SettingsTable:
    """Compare the settings of runs of one kind."""
    runs = [settings(record) for record in records]
    names = dict.fromkeys(name for run in runs for name in run)
    rows = [(name, tuple(_shown(run, name) for run in runs)) for name in names]
    return SettingsTable(
        names=tuple(record.name for record in records),
        different=tuple(row for row in rows if len(set(row[1])) > 1),
        equal=tuple(row for row in rows if len(set(row[1])) == 1),
    )


def settings(record: RunRecord) -> dict[str, Any]:
    """Return all settings of a run, with the versions of the libraries, by one name each."""
    versions = {f"version of {name}": value for name, value in record.part("versions").items()}
    return dict(_flat(record.part("job"), "")) | versions


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield nested settings.

    >>> dict(_flat({"training": {"optimizer": {"eps": 1}}, "model": {"bias": True}}, ""))
    {'eps': 1, 'model.bias': True}
    """
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, prefix + GROUPS.get(name, f"{name}."))
        else:
            yield prefix + name, value


def _shown(run: Mapping[str, Any], name: str) -> str:
    """Format a value.

    >>> _shown({"labels": ["a", "b"]}, "labels"), _shown({"bias": True}, "bias"), _shown({}, "bias")
    ('a, b', 'yes', '–')
    """
    value = run.get(name, ABSENT)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value in (None, "") else str(value)
