"""What a model predicted for the same texts at each validation of its pre-training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from firth.jobs.run_report.run_record import RunRecord
from firth.utils.figures import DataTable, Figure, Tabs

MOST_ROWS = 12  # of a table; the page leaves out others, evenly


class LoggedSamples(NamedTuple):
    """The samples of one validation."""

    step: int
    loss: float | None
    texts: tuple[str, ...]


def logged_samples(record: RunRecord) -> list[LoggedSamples]:
    """Return the samples in the log of a run."""
    return [
        LoggedSamples(
            int(line["step"]), _finite(line.get("loss")), tuple(map(str, line["samples"]))
        )
        for line in record.lines("validation", "step")
        if isinstance(line.get("samples"), list) and line["samples"]
    ]


def _finite(loss: Any) -> float | None:
    return loss if isinstance(loss, float) and math.isfinite(loss) else None


def sample_values(record: RunRecord) -> list[dict[str, Any]]:
    """Return the samples of a run as JSON values."""
    return [one._asdict() for one in logged_samples(record)]


def sample_figures(records: Sequence[RunRecord]) -> list[Figure]:
    """Show the samples of each run that logged some, one row for each validation."""
    found = {record.name: logged_samples(record) for record in records}
    tables = [(name, _table(samples)) for name, samples in found.items() if samples]
    if len(tables) < 2:
        return [table for _, table in tables]
    return [Tabs("", tuple(name for name, _ in tables), tuple((table,) for _, table in tables))]


def _table(samples: Sequence[LoggedSamples]) -> DataTable:
    count = max(len(one.texts) for one in samples)
    rows = tuple(
        (
            f"{one.step:,}",
            "–" if one.loss is None else f"{one.loss:.3f}",
            *one.texts,
            *[""] * (count - len(one.texts)),
        )
        for one in _evenly(samples)
    )
    columns = ("step", "loss", *(f"text {number}" for number in range(1, count + 1)))
    return DataTable("", columns, rows, texts=True)


def _evenly(samples: Sequence[LoggedSamples]) -> list[LoggedSamples]:
    """Choose at most MOST_ROWS validations, with the first and the last.

    >>> chosen = _evenly([LoggedSamples(step, None, ()) for step in range(100)])
    >>> chosen[0].step, chosen[-1].step, len(chosen)
    (0, 99, 12)
    """
    if len(samples) <= MOST_ROWS:
        return list(samples)
    last = len(samples) - 1
    return [samples[round(place * last / (MOST_ROWS - 1))] for place in range(MOST_ROWS)]
