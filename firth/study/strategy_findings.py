"""What the study of strategies concludes: scores, memory and time against full fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firth.study.engine.statistics import Difference, Scores
from firth.study.engine.study import Finding, points, with_interval

FULL, LORA, FREEZE, PROBE = "full", "lora", "freeze", "probe"
CLEAR_RATIO = 1.1  # of two times that are estimated from single steps
LECTURE_FRACTION = 0.01  # of the parameters that LoRA trains, according to the lecture


@dataclass(frozen=True, kw_only=True)
class StrategyFound:
    """The score of a strategy over all seeds, and its cost."""

    scores: Scores
    cost: Mapping[str, Any]  # of `estimated_cost`; empty if it failed
    trainable: int
    parameters: int
    stored: float  # bytes of the weights that a run writes
    learning_rate: float | None

    @property
    def fraction(self) -> float:
        """The trainable parameters divided by all parameters."""
        return self.trainable / self.parameters


Found = Mapping[str, StrategyFound]


def strategy_findings(
    found: Found, differences: Mapping[str, Difference], margin: float
) -> list[Finding]:
    """Compare LoRA, the linear probe and freezing with full fine-tuning."""
    if FULL not in found:
        text = "Full fine-tuning has no result, so that nothing can be compared with it."
        return [Finding(name="lora-same-score", text=text, holds=None)]
    findings = []
    if loras := [name for name in differences if kind(name) == LORA]:
        near = min(loras, key=lambda name: abs(found[name].fraction - LECTURE_FRACTION))
        findings.append(same_score("lora-same-score", near, found[near], differences[near], margin))
        findings += memory_ratio(near, found[near].cost, found[FULL].cost)
    findings.append(full_is_best(differences))
    if PROBE in differences:
        findings.append(
            same_score("probe-same-score", PROBE, found[PROBE], differences[PROBE], margin)
        )
    if frozen := [name for name in differences if kind(name) == FREEZE]:
        findings += time_ratio(frozen[0], found[frozen[0]].cost, found[FULL].cost)
    return findings


def kind(strategy: str) -> str:
    """Return the name of a strategy without its options.

    >>> kind("lora:4")
    'lora'
    """
    return strategy.partition(":")[0]


def same_score(
    name: str,
    strategy: str,
    one: StrategyFound,
    against: Difference,
    margin: float,
) -> Finding:
    """Decide whether a strategy scores as full fine-tuning, or at most `margin` less."""
    metric = against.metric
    low, high = (metric.value if end is None else end for end in (metric.low, metric.high))
    holds = True if low > -margin else False if high < -margin else None
    answers = {
        True: f"at most {100 * margin:g} points less than",
        False: f"more than {100 * margin:g} points less than",
        None: "undecided against",
    }
    size = with_interval(metric, unit="points", scale=100)
    return Finding(
        name=name,
        text=f"{strategy} trains {100 * one.fraction:.3g} % of the parameters and scores "
        f"{answers[holds]} full fine-tuning: {size}.",
        holds=holds,
        **points(metric),
    )


def full_is_best(differences: Mapping[str, Difference]) -> Finding:
    """Decide whether full fine-tuning scores higher than every other strategy (Holm 1979)."""
    better = [name for name, found in differences.items() if found.holds is True]
    worse = [name for name, found in differences.items() if found.holds is False]
    open_ = [name for name, found in differences.items() if found.holds is None]
    holds = False if better else None if open_ else bool(worse) or None
    parts = {"higher": better, "lower": worse, "undecided": open_}
    listed = "; ".join(f"{key}: {', '.join(names)}" for key, names in parts.items() if names)
    return Finding(
        name="full-best",
        text=f"Scores against full fine-tuning: {listed or 'nothing to compare'}.",
        holds=holds,
        value=float(len(worse)),
        unit=f"of {len(differences)} strategies lower",
    )


def memory_ratio(strategy: str, own: Mapping[str, Any], full: Mapping[str, Any]) -> list[Finding]:
    """Compare the training memory with that of full fine-tuning."""
    if not own.get("memory") or not full.get("memory"):
        return []
    ratio = full["memory"] / own["memory"]
    states = [cost["gradients"] + cost["optimizer"] for cost in (full, own)]
    return [
        Finding(
            name="lora-memory",
            text=f"{strategy} needs {ratio:.3g} times less memory than full fine-tuning; its "
            f"gradients and optimizer state alone {states[0] / max(1, states[1]):.3g} times less.",
            holds=ratio >= 100,
            value=ratio,
            unit="times",
        )
    ]


def time_ratio(strategy: str, own: Mapping[str, Any], full: Mapping[str, Any]) -> list[Finding]:
    """Compare the estimated training times; small differences may be noise of the machine."""
    if not own.get("seconds") or not full.get("seconds"):
        return []
    ratio = full["seconds"] / own["seconds"]
    return [
        Finding(
            name="freeze-faster",
            text=f"{strategy} trains {ratio:.3g} times as fast as full fine-tuning (estimated from "
            f"single steps; less than {CLEAR_RATIO:g} times decides nothing).",
            holds=ratio > 1 if max(ratio, 1 / ratio) > CLEAR_RATIO else None,
            value=ratio,
            unit="times",
        )
    ]
