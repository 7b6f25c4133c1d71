"""Rows, tables and charts of the comparison of architectures."""

from __future__ import annotations

from typing import Any

from firth.metrics.bootstrap import Metric, to_json
from firth.study.architecture_plans import PLANS, TABLES
from firth.study.architecture_results import Column, GridScores, compared, findings
from firth.study.cells.measured_cost_cells import GENERATING, READING
from firth.study.engine.statistics import Scores, metric_texts
from firth.study.engine.study import StudyAnalysis
from firth.utils.figures import DataTable, Figure, LineChart, Point

CAPTION = (
    "At the budgets of the three tables: equal tokens, FLOPs and seconds. Means over seeds; the "
    "bars are 95 % intervals that resample seeds and examples."
)
CLOZE_NOTE = (
    "Cloze accuracy: the removed word is the most probable one, given both sides of the blank "
    "(encoder, encoder-decoder, hybrid, causal-then-masked) or the text before it (decoder, prefix "
    "LM, which cannot read the other side). Bits per byte: of the second half of a text, given the "
    "first. Minimal pairs: by pseudo-log-likelihood where masks are filled, by log-likelihood of "
    "other decoders, by the words in which the sentences differ of an encoder-decoder."
)
SECONDS_NOTE = (
    "FLOPs are estimated from the weights (Kaplan et al. 2020); seconds from the measured speed of "
    "training. The encoder at the budget of the first table sets both."
)


def analyse(found: GridScores) -> StudyAnalysis:
    """Compare the architectures in each table."""
    tables = [_table(found, table) for table in TABLES]
    charts = [chart for column in found.columns if (chart := _chart(found, column)) is not None]
    figures: list[Figure] = [*charts, *tables, _costs(found), _differences(found)]
    return StudyAnalysis(
        rows=[_row(found, *key) for key in found.budgets],
        findings=findings(found),
        figures=figures,
        notes=(CLOZE_NOTE, SECONDS_NOTE),
    )


def _row(found: GridScores, table: str, name: str) -> dict[str, Any]:
    cost, speed = found.costs[name], found.speeds.get(name, {})
    tokens = found.budgets[table, name]
    row = {
        "table": f"equal {table}",
        "architecture": name,
        "objective": PLANS[name].objective,
        "parameters": cost["parameters"],
        "non_embedding_parameters": cost["non_embedding_parameters"],
        "tokens": tokens,
        "flops": tokens * cost["flops_per_token"],
        "training_seconds": found.seconds(table, name),
    }
    for column in found.columns:
        if scores := found.scores.get((column.name, name, tokens)):
            row[column.label] = to_json(scores.metric())
    for label, scores in speed.get("scores", {}).items():
        row[label] = to_json(Scores.of([scores]).metric())
    row["memory"] = speed.get("memory")
    error = found.errors.get((name, tokens), "")
    return row | {"error": error} if error else row


def _table(found: GridScores, table: str) -> DataTable:
    """Return the scores at one budget; the best of each column is emphasized."""
    columns = {column.name: found.column(column, table) for column in found.columns}
    rows, marked = [], set()
    for i, name in enumerate(found.costs):
        tokens = found.budgets[table, name]
        cells = [name, f"{tokens:,}", f"{tokens * found.costs[name]['flops_per_token']:.2e}"]
        cells.append(f"{found.seconds(table, name):.1f}")
        for column in found.columns:
            scores = columns[column.name]
            cells.append(column.text(scores[name].metric()) if name in scores else "–")
            sign = -1 if column.lower_is_better else 1
            if name in scores and name == max(scores, key=lambda n: sign * scores[n].value):
                marked.add((i, len(cells) - 1))
        rows.append(tuple(cells))
    heads = ("architecture", "tokens", "FLOPs", "seconds")
    titles = (*heads, *(column.heading for column in found.columns))
    return DataTable(f"Equal {table}", titles, tuple(rows), marked=frozenset(marked))


def _costs(found: GridScores) -> DataTable:
    rows = []
    for name, cost in found.costs.items():
        speed = found.speeds.get(name, {})
        scores = {k: Scores.of([one]).value for k, one in speed.get("scores", {}).items()}
        rows.append(
            (
                name,
                PLANS[name].objective,
                f"{cost['parameters']:,}",
                f"{cost['non_embedding_parameters']:,}",
                f"{cost['flops_per_token'] / 1e6:.2f}",
                f"{cost['tokens_per_second']:,.0f}",
                f"{scores[READING]:,.0f}" if READING in scores else "–",
                f"{scores[GENERATING]:,.0f}" if GENERATING in scores else "–",
                f"{speed['memory'] / 1e6:.1f}" if speed.get("memory") else "–",
            )
        )
    columns = (
        "architecture",
        "objective",
        "parameters",
        "without embeddings",
        "MFLOPs/token",
        "training tokens/s",
        "texts/s",
        "generated tokens/s",
        "memory (MB)",
    )
    return DataTable("Size, speed and memory", columns, tuple(rows))


def _differences(found: GridScores) -> DataTable:
    rows = []
    for column in found.columns:
        for table in TABLES:
            for (first, second), one in compared(found, column, table).items():
                negative = Metric(
                    value=-one.metric.value,
                    low=None if one.metric.high is None else -one.metric.high,
                    high=None if one.metric.low is None else -one.metric.low,
                )
                value, interval = metric_texts(negative, column.scale, 2)
                names = (second, first, column.label, f"equal {table}")
                rows.append((*names, value, interval, f"{one.p:.4f}"))
    titles = ("architecture", "compared with", "score", "budget", "better by", "95 % interval", "p")
    return DataTable("All differences (p: Holm)", titles, tuple(rows), folded=True)


def _chart(found: GridScores, column: Column) -> LineChart | None:
    """Show a score over the training FLOPs, one line for each architecture."""
    lines: dict[str, tuple[Point, ...]] = {}
    for name, cost in found.costs.items():
        points = []
        for tokens in sorted({found.budgets[table, name] for table in TABLES}):
            if scores := found.scores.get((column.name, name, tokens)):
                metric = scores.metric()
                gigaflops = tokens * cost["flops_per_token"] / 1e9
                points.append(Point(gigaflops, metric.value, metric.low, metric.high))
        if points:
            lines[name] = tuple(points)
    if not lines:
        return None
    title = column.label[0].upper() + column.label[1:]
    return LineChart(title, "GFLOPs of pre-training", column.metric, lines, caption=CAPTION)
