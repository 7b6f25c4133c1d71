"""What the study `timeline` concludes: pre-training, labels, and another domain."""

from __future__ import annotations

import math

from firth.study.engine.statistics import difference, unpaired_difference
from firth.study.engine.study import Finding, decided
from firth.study.label_curves import finite, labels_to_reach
from firth.study.timeline_figures import Timeline
from firth.study.timeline_models import CNN, DECODER, ENCODER, SCRATCH


def timeline_findings(found: Timeline) -> list[Finding]:
    """Return the verdict, and the lectures' comparisons where the methods were run."""
    if len(found.methods) < 2:
        return [Finding(name="timeline", text="There is nothing to compare.", holds=None)]
    findings = [_first_against_last(found)]
    scratch, names = SCRATCH.get(found.task), {method.name for method in found.methods}
    if scratch in names and DECODER in names:
        findings.append(_labels(found, scratch))
    if CNN in found.other_domain:
        findings.append(_other_domain(found))
    return findings


def _first_against_last(found: Timeline) -> Finding:
    """Compare the encoder with random weights; else the last method with the first."""
    names = [method.name for method in found.methods]
    later = ENCODER if ENCODER in names else names[-1]
    scratch = SCRATCH.get(found.task, "")
    earlier = scratch if scratch in names and later == ENCODER else names[0]
    first, second = found.scores(later), found.scores(earlier)
    assert first is not None
    assert second is not None
    if not found.reference:  # bits per byte: lower is better
        claim = f"{later} predicts text better than {earlier}"
        return decided(
            "timeline", claim, difference(second, first), unit="bits per byte", scale=1, digits=3
        )
    claim = f"with {found.reference:,} labels, {later} scores higher than {earlier}"
    return decided("timeline", claim, difference(first, second))


def _labels(found: Timeline, scratch: str) -> Finding:
    """Compute how many labels a network with random weights needs for the decoder's score."""
    needed = labels_to_reach(found.curves, (DECODER, found.reference), scratch)
    low, high = needed.low, needed.high
    return Finding(
        name="timeline-labels",
        text=f"{found.reference:,} labels with the pre-trained {DECODER} = {needed.text} labels "
        f"with {scratch} from random weights.",
        holds=True if low > found.reference else False if high < found.reference else None,
        value=finite(needed.value),
        low=float(min(low, needed.counts[-1])),
        high=finite(high),
        unit="labels",
        beyond=None if math.isfinite(needed.value) else float(needed.counts[-1]),
        smallest=float(needed.counts[0]),
    )


def _other_domain(found: Timeline) -> Finding:
    """Compare the CNN on the two domains, which have different examples."""
    first, other = found.scores(CNN), found.other_domain[CNN]
    assert first is not None
    claim = (
        f"{CNN} scores lower on another domain ({100 * first.value:.1f} %, then "
        f"{100 * other.value:.1f} %)"
    )
    return decided("timeline-domain", claim, unpaired_difference(first, other))
