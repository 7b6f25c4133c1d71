"""What the study of domain shift concludes: the fall on the target, and what reduces it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from firth.study.engine.statistics import Scores, difference, resampled_function
from firth.study.engine.study import Finding, decided

TFIDF, SCRATCH, PRETRAINED = "TF-IDF", "scratch", "pre-trained"
CONTROL, ADAPTED = "more known text", "target text"
TARGET_LABELS = "target labels"


@dataclass(frozen=True, eq=False)
class DomainScores:
    """The scores of one method on the test examples of both domains."""

    source: Scores
    target: Scores

    @classmethod
    def of(cls, scores: Scores, source_examples: int) -> DomainScores:
        """Split the scores of a test file that has the source's examples first."""
        first, others = slice(source_examples), slice(source_examples, None)
        return cls(scores.examples(first), scores.examples(others))


def domain_findings(found: Mapping[str, DomainScores]) -> list[Finding]:
    """Compare the domains, and the methods on the target."""
    findings = []
    if ADAPTED in found:
        against = CONTROL if CONTROL in found else PRETRAINED
        findings += _adapted(found, against)
    for name in (TFIDF, SCRATCH, PRETRAINED):
        if name in found:
            findings.append(_fall(name, found[name]))
    for name in (TFIDF, SCRATCH):
        if name in found and PRETRAINED in found:
            findings.append(_smaller_fall(name, found))
    if findings:
        return findings
    return [Finding(name="domain-shift", text="No run can be compared.", holds=None)]


def _adapted(found: Mapping[str, DomainScores], against: str) -> list[Finding]:
    if against not in found:
        return []
    adapted, other = found[ADAPTED], found[against]
    than = "as much more of the known text" if against == CONTROL else "none"
    findings = [
        decided(
            "domain-adaptive",
            f"pre-training on text of the target raises its score more than {than}",
            difference(adapted.target, other.target),
        ),
        decided(
            "domain-adaptive-source",
            "pre-training on text of the target lowers the score on the source",
            difference(other.source, adapted.source),
        ),
    ]
    if TARGET_LABELS in found:
        ceiling = {
            "target labels": found[TARGET_LABELS].target,
            "adapted": adapted.target,
        }
        left = resampled_function(ceiling, lambda value: value["target labels"] - value["adapted"])
        claim = "labels of the target are still better than its text"
        findings.append(decided("domain-labels", claim, left))
    return findings


def _fall(name: str, one: DomainScores) -> Finding:
    """Compare the scores on the two domains, which have different examples."""
    return decided(
        f"domain-shift-{name.lower()}",
        f"{name} scores lower on the other domain ({100 * one.source.value:.1f} %, then "
        f"{100 * one.target.value:.1f} %)",
        difference(one.source, one.target),
    )


def _smaller_fall(name: str, found: Mapping[str, DomainScores]) -> Finding:
    """Decide whether the fall is smaller with pre-training than without."""
    scores = {
        (method, domain): getattr(found[method], domain)
        for method in (name, PRETRAINED)
        for domain in ("source", "target")
    }

    def smaller(values: Mapping[tuple[str, str], float]) -> float:
        falls = {
            method: values[method, "source"] - values[method, "target"]
            for method in (name, PRETRAINED)
        }
        return falls[name] - falls[PRETRAINED]

    return decided(
        f"domain-robust-{name.lower()}",
        f"pre-training loses less on the other domain than {name}",
        resampled_function(scores, smaller),
    )
