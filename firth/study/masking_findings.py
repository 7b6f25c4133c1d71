"""Findings and figures of the study of masking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firth.study.engine.statistics import Difference, Scores, difference, holm, metric_texts
from firth.study.engine.study import Finding, decided
from firth.utils.figures import Bar, BarChart, DataTable, Figure, LineChart, Point

REFERENCE, REFERENCE_REPLACEMENT = "15 %", "80/10/10"
STATIC, WORDS, SPANS = "static", "whole words", "spans"

Found = Mapping[str, Mapping[str, Scores]]  # metric, way of masking


def percent(prob: float) -> str:
    """Format a probability.

    >>> percent(0.15)
    '15 %'
    """
    return f"{100 * prob:g} %"


def masking_findings(losses: Mapping[str, Scores], mask_probs: Sequence[float]) -> list[Finding]:
    """Compare each way of masking with 15 %, 80/10/10, dynamic; p-values are Holm's."""
    if REFERENCE not in losses:
        text = f"The reference, {REFERENCE} with {REFERENCE_REPLACEMENT}, has no result."
        return [Finding(name="mask-15", text=text, holds=None)]
    reference = losses[REFERENCE]
    worse = holm(
        {n: difference(scores, reference) for n, scores in losses.items() if n != REFERENCE}
    )
    better = {name: one.opposite for name, one in worse.items()}
    probs = [name for name in map(percent, mask_probs) if name in worse]
    found = [best_probability({name: worse[name] for name in probs})] if probs else []
    claims = {
        "50 %": ("mask-50", f"{REFERENCE} gives a lower loss than 50 %", worse),
        "100/0/0": (
            "mask-80-10-10",
            f"{REFERENCE_REPLACEMENT} gives a lower loss than masking all selected tokens",
            worse,
        ),
        STATIC: ("dynamic", "dynamic masks give a lower loss than static ones", worse),
        WORDS: ("whole-words", "masking whole words gives a lower loss than tokens", better),
        SPANS: ("spans", "masking spans gives a lower loss than tokens", better),
    }
    return found + [
        decided(finding, claim, group[name], unit="nats", scale=1.0, digits=3)
        for name, (finding, claim, group) in claims.items()
        if name in worse
    ]


def task_findings(accuracies: Mapping[str, Scores]) -> list[Finding]:
    """Compare fine-tuned models: the lectures' reasons for 80/10/10 and for spans."""
    if REFERENCE not in accuracies:
        return []
    reference = accuracies[REFERENCE]
    claims = {
        "100/0/0": ("task-80-10-10", f"{REFERENCE_REPLACEMENT} helps fine-tuning"),
        SPANS: ("task-spans", "masking spans helps fine-tuning"),
    }
    gains = {name: difference(accuracies[name], reference) for name in claims if name in accuracies}
    if "100/0/0" in gains:
        gains["100/0/0"] = difference(reference, accuracies["100/0/0"])
    return [decided(*claims[name], gain) for name, gain in holm(gains).items()]


def best_probability(worse: Mapping[str, Difference]) -> Finding:
    """Say whether 15 % has the lowest loss; `worse` is how much higher the others' are."""
    rival = min(worse, key=lambda name: worse[name].metric.value)
    gap = worse[rival]
    if any(one.holds is False for one in worse.values()):
        holds, claim = False, f"{REFERENCE} is not the best mask probability here"
    elif all(one.holds for one in worse.values()):
        holds, claim = True, f"{REFERENCE} is the best mask probability"
    else:
        holds, claim = None, f"The runs cannot decide whether {REFERENCE} is the best"
    metric = gap.metric
    interval = "" if metric.low is None else f" ({metric.low:+.3f} to {metric.high:+.3f})"
    return Finding(
        name="mask-15",
        text=f"{claim}: the loss with {rival} is {metric.value:+.3f} nats{interval} relative to "
        "it.",
        holds=holds,
        value=metric.value,
        low=metric.low,
        high=metric.high,
        unit="nats",
    )


def masking_figures(found: Found, mask_probs: Sequence[float]) -> list[Figure]:
    accuracies = found["accuracy"]
    points = [
        Point(100 * prob, *_ends(accuracies[percent(prob)]))
        for prob in sorted(mask_probs)
        if percent(prob) in accuracies
    ]
    bars = [Bar(name, *_ends(scores)) for name, scores in accuracies.items()]
    return [
        LineChart(
            "Accuracy by mask probability",
            "tokens selected in pre-training (%)",
            "accuracy on masked tokens",
            {f"{REFERENCE_REPLACEMENT}, dynamic": tuple(points)},
            caption="All models predict the same tokens of held-out texts: 15 %, all replaced by "
            "the mask token. The 95 % intervals resample seeds and documents.",
        ),
        BarChart("Accuracy on masked tokens", tuple(bars)),
        _table(found),
    ]


def _ends(scores: Scores) -> tuple[float, float | None, float | None]:
    metric = scores.metric()
    return metric.value, metric.low, metric.high


def _table(found: Found) -> DataTable:
    metrics = [metric for metric, scores in found.items() if scores]
    columns = [title for metric in metrics for title in (metric, "95 % interval")]
    rows = []
    for name in found["loss"]:
        cells = [found[metric].get(name) for metric in metrics]
        texts = [("", "") if one is None else metric_texts(one.metric()) for one in cells]
        rows.append((name, *(text for pair in texts for text in pair)))
    return DataTable("", ("masking", *columns), tuple(rows))
