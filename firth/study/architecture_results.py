"""The comparison of architectures: differences to the encoder, and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firth.metrics.bootstrap import Metric
from firth.study.architecture_plans import (
    DECODER,
    ENCODER,
    ENCODER_DECODER,
    EQUAL_TOKENS,
    TABLES,
)
from firth.study.cells.measured_cost_cells import GENERATING
from firth.study.engine.statistics import (
    Difference,
    Scores,
    difference,
    holm,
    resampled_function,
)
from firth.study.engine.study import Finding, decided

BITS, CLOZE, PAIRS = "bits per byte", "cloze accuracy", "minimal pairs"  # columns


@dataclass(frozen=True, kw_only=True)
class Column:
    """A score of the tables."""

    name: str
    label: str
    metric: str  # of its cells
    unit: str = "points"
    scale: float = 100.0
    lower_is_better: bool = False

    @property
    def heading(self) -> str:
        return f"{self.label} (%)" if self.scale == 100 else self.label

    def text(self, metric: Metric) -> str:
        """Format a value with its interval."""
        digits = (1, 0) if self.scale == 100 else (2, 2)
        value = f"{self.scale * metric.value:.{digits[0]}f}"
        if metric.low is None or metric.high is None:
            return f"{value} (no interval: {metric.reason})"
        ends = (f"{self.scale * end:.{digits[1]}f}" for end in (metric.low, metric.high))
        return f"{value} ({'–'.join(ends)})"

    def better(self, first: Scores, second: Scores) -> Difference:
        """Compare two scores; the difference is positive if the first is better."""
        return difference(second, first) if self.lower_is_better else difference(first, second)


@dataclass(frozen=True, kw_only=True)
class GridScores:
    """The results of all architectures."""

    columns: Sequence[Column]
    budgets: Mapping[tuple[str, str], int]  # (table, architecture): tokens
    scores: Mapping[tuple[str, str, int], Scores]  # (column, architecture, tokens)
    costs: Mapping[str, Mapping[str, Any]]  # of training, by architecture
    speeds: Mapping[str, Mapping[str, Any]]  # of inference
    errors: Mapping[tuple[str, int], str]  # (architecture, tokens)

    def column(self, column: Column, table: str) -> dict[str, Scores]:
        """Return a score of each architecture that has it."""
        return {
            name: scores
            for name in self.costs
            if (scores := self.scores.get((column.name, name, self.budgets[table, name])))
        }

    def seconds(self, table: str, name: str) -> float:
        """Estimate the seconds of a pre-training run that has the machine for itself."""
        return self.budgets[table, name] / float(self.costs[name]["tokens_per_second"])


def compared(found: GridScores, column: Column, table: str) -> dict[tuple[str, str], Difference]:
    """Compare the encoder with the others; where it has no score, the decoder. Holm-corrected."""
    scores = found.column(column, table)
    first = next((name for name in (ENCODER, DECODER) if name in scores), None)
    if first is None:
        return {}
    pairs = {
        (first, name): column.better(scores[first], other)
        for name, other in scores.items()
        if name != first
    }
    return holm(pairs)


def findings(found: GridScores) -> list[Finding]:
    """Compare the encoder with the decoder in each table, and name the best architectures."""
    made = [
        _finding(column, table, *pair, compare)
        for column in found.columns
        for table in TABLES
        for pair, compare in compared(found, column, table).items()
        if pair[1] == DECODER
    ]
    made += _encoder_decoder(found)
    for column in found.columns:
        if (best := best_finding(found, column, EQUAL_TOKENS)) is not None:
            made.append(best)
    made += speed_findings(found)
    nothing = Finding(name="architectures", text="No architecture has a result.", holds=None)
    return made or [nothing]


def _finding(column: Column, table: str, first: str, second: str, compare: Difference) -> Finding:
    claim = f"at equal {table}, the {first} is better than the {second} ({column.label})"
    name = _slug(f"{column.name}-{table}" + ("" if first == ENCODER else f"-{first}"))
    return decided(name, claim, compare, unit=column.unit, scale=column.scale)


def _encoder_decoder(found: GridScores) -> list[Finding]:
    """Compare the encoder-decoder with the decoder at blanks, as lecture 4 does."""
    findings = []
    for column in found.columns:
        scores = found.column(column, EQUAL_TOKENS)
        if column.name == CLOZE and ENCODER_DECODER in scores and DECODER in scores:
            compare = column.better(scores[ENCODER_DECODER], scores[DECODER])
            findings.append(_finding(column, EQUAL_TOKENS, ENCODER_DECODER, DECODER, compare))
    return findings


def best_finding(found: GridScores, column: Column, table: str) -> Finding | None:
    """Name the best architecture of a column, and those that are not significantly worse."""
    scores = found.column(column, table)
    if len(scores) < 2:
        return None
    sign = -1 if column.lower_is_better else 1
    best = max(scores, key=lambda name: sign * scores[name].value)
    pairs = {n: column.better(scores[best], one) for n, one in scores.items() if n != best}
    equal = [name for name, compare in holm(pairs).items() if not compare.holds]
    metric = scores[best].metric()
    rest = f"; not significantly worse: {', '.join(equal)}" if equal else ", better than all others"
    return Finding(
        name=_slug(f"best-{column.name}-{table}"),
        text=f"Best at equal {table}, {column.label}: {best} with {column.text(metric)}{rest}.",
        holds=None if equal else True,
        value=column.scale * metric.value,
        low=None if metric.low is None else column.scale * metric.low,
        high=None if metric.high is None else column.scale * metric.high,
        unit="%" if column.scale == 100 else column.unit,
    )


def speed_findings(found: GridScores) -> list[Finding]:
    """Compare how fast the encoder reads tokens and the decoder generates them."""
    encoder = found.speeds.get(ENCODER, {}).get("scores", {}).get("tokens per second")
    decoder = found.speeds.get(DECODER, {}).get("scores", {}).get(GENERATING)
    if encoder is None or decoder is None:
        return []
    scores = {ENCODER: Scores.of([encoder]), DECODER: Scores.of([decoder])}
    ratio = resampled_function(scores, lambda one: one[ENCODER] / one[DECODER]).metric
    low, high = ratio.low or 0.0, ratio.high or 0.0
    return [
        Finding(
            name="speed",
            text=f"The encoder reads {scores[ENCODER].value:,.0f} tokens per second, the decoder "
            f"generates {scores[DECODER].value:,.0f}: {ratio.value:.1f} times fewer (95 % interval "
            f"{low:.1f} to {high:.1f}).",
            holds=True if low > 1 else False if high < 1 else None,
            value=ratio.value,
            low=ratio.low,
            high=ratio.high,
            unit="times",
        )
    ]


def _slug(text: str) -> str:
    return text.lower().replace(" ", "-")
