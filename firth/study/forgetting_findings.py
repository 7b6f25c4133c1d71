"""What the study of forgetting concludes: how far the loss rises, and how much of it is avoided."""

from __future__ import annotations

from collections.abc import Mapping

from firth.study.cells.forgetting_cells import LOSS, OLD_HEAD
from firth.study.engine.statistics import Difference, Scores, difference, holm, resampled_function
from firth.study.engine.study import Finding, decided, with_interval

BEFORE, FULL, HIGH_RATE = "before", "full", "learning rate x 10"


def forgetting_findings(found: Mapping[str, Mapping[str, Scores]], metric: str) -> list[Finding]:
    """Compare the losses with those before fine-tuning and after full fine-tuning."""
    if FULL not in found:
        text = "Full fine-tuning has no result, so that nothing can be compared with it."
        return [Finding(name="forgetting", text=text, holds=None)]
    before, full = found[BEFORE], found[FULL]
    rise = difference(full[LOSS], before[LOSS])
    other = difference(before[OLD_HEAD], full[OLD_HEAD])
    others = [name for name in found if name not in (BEFORE, FULL)]
    avoided = holm({name: difference(full[LOSS], found[name][LOSS]) for name in others})
    findings = [
        decided(
            "forgetting",
            "full fine-tuning raises the language modelling loss",
            rise,
            unit="nats",
            scale=1.0,
            digits=3,
        )
    ]
    for name in others:
        if name == HIGH_RATE:
            continue
        cost = difference(found[name][metric], full[metric])
        findings.append(_avoided(name, avoided[name], found, cost))
    if HIGH_RATE in avoided:
        findings.append(_high_rate(avoided[HIGH_RATE]))
    findings.append(
        decided("forgetting-other-task", "full fine-tuning harms another task's head", other)
    )
    return findings


def fraction_avoided(before: Scores, full: Scores, other: Scores) -> Difference:
    """Compute the fraction of the rise of full fine-tuning that another method avoids."""

    def fraction(values: Mapping[str, float]) -> float:
        rise = values["full"] - values["before"]
        return (values["full"] - values["other"]) / rise if rise else 0.0

    return resampled_function({"before": before, "full": full, "other": other}, fraction)


def _avoided(
    name: str,
    saved: Difference,
    found: Mapping[str, Mapping[str, Scores]],
    cost: Difference,
) -> Finding:
    """Say how much of the rise a method avoids, and what it costs in the task's score."""
    metric = fraction_avoided(found[BEFORE][LOSS], found[FULL][LOSS], found[name][LOSS]).metric
    low, high = (metric.value if end is None else end for end in (metric.low, metric.high))
    starts = {
        True: f"{name} avoids {metric.value:.0%} of the rise ({low:.0%} to {high:.0%})",
        False: f"{name} raises the loss more than full fine-tuning: {metric.value:+.0%} avoided",
        None: f"The runs cannot decide whether {name} avoids forgetting: {metric.value:.0%} of the "
        f"rise ({low:.0%} to {high:.0%})",
    }
    size = with_interval(cost.metric, unit="points", scale=100)
    return Finding(
        name=f"forgetting-{name.replace(' / ', '-').replace(' ', '-').lower()}",
        text=f"{starts[saved.holds]}; the score of the task changes by {size}.",
        holds=saved.holds,
        value=metric.value,
        low=metric.low,
        high=metric.high,
        unit="of the rise",
    )


def _high_rate(saved: Difference) -> Finding:
    """Decide whether ten times the learning rate forgets more."""
    claim = "ten times the learning rate raises the loss more"
    return decided("forgetting-high-rate", claim, saved.opposite, unit="nats", scale=1.0, digits=3)
