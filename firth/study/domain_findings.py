"""What the study of domain shift concludes: the fall on the target, and what reduces it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from firth.study.engine.statistics import (
    Difference,
    Scores,
    difference,
    holm,
    resampled_function,
    unpaired_difference,
)
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


class DomainComparison(NamedTuple):
    """A finding before the correction of its p-value."""

    name: str
    claim: str
    found: Difference


def domain_findings(found: Mapping[str, DomainScores]) -> list[Finding]:
    """Compare the domains, and the methods on the target; p-values are corrected (Holm)."""
    pairs = _adapted(found) if ADAPTED in found else []
    pairs += [_fall(name, found[name]) for name in (TFIDF, SCRATCH, PRETRAINED) if name in found]
    if PRETRAINED in found:
        pairs += [_smaller_fall(name, found) for name in (TFIDF, SCRATCH) if name in found]
    if not pairs:
        return [Finding(name="domain-shift", text="No run can be compared.", holds=None)]
    corrected = holm({pair.name: pair.found for pair in pairs})
    return [decided(pair.name, pair.claim, corrected[pair.name]) for pair in pairs]


def _adapted(found: Mapping[str, DomainScores]) -> list[DomainComparison]:
    against = CONTROL if CONTROL in found else PRETRAINED
    if against not in found:
        return []
    adapted, other = found[ADAPTED], found[against]
    than = "as much more of the known text" if against == CONTROL else "none"
    pairs = [
        DomainComparison(
            "domain-adaptive",
            f"pre-training on text of the target raises its score more than {than}",
            difference(adapted.target, other.target),
        ),
        DomainComparison(
            "domain-adaptive-source",
            "pre-training on text of the target lowers the score on the source",
            difference(other.source, adapted.source),
        ),
    ]
    if TARGET_LABELS in found:
        left = difference(found[TARGET_LABELS].target, adapted.target)
        claim = "labels of the target are still better than its text"
        pairs.append(DomainComparison("domain-labels", claim, left))
    return pairs


def _fall(name: str, one: DomainScores) -> DomainComparison:
    """Compare the scores on the two domains, which have different examples."""
    return DomainComparison(
        f"domain-shift-{name.lower()}",
        f"{name} scores lower on the other domain ({100 * one.source.value:.1f} %, then "
        f"{100 * one.target.value:.1f} %)",
        unpaired_difference(one.source, one.target),
    )


def _smaller_fall(name: str, found: Mapping[str, DomainScores]) -> DomainComparison:
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

    return DomainComparison(
        f"domain-robust-{name.lower()}",
        f"pre-training loses less on the other domain than {name}",
        resampled_function(scores, smaller),
    )
