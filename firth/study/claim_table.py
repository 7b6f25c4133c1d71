"""The claims of the lectures: a table of data, `claims.json`.

A row has the words of a lecture, their source, the number that they claim, and the finding of a
study that measures it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from firth.study.engine.study import Finding


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a lecture says, and the finding that measures it.

    With `at_least` or `at_most`, the claim holds if the whole interval of the finding does.

    >>> words = {"source": "Lecture 2", "claim": "10x less data", "claimed": "10x"}
    >>> claim = Claim(**words, study="labels", finding="scratch", at_least=1000)
    >>> claim.holds(Finding(name="scratch", text="", holds=True, value=2300, low=1700, high=3100))
    True
    """

    source: str
    claim: str  # its words
    claimed: str  # its number, or "–"
    study: str
    finding: str
    at_least: float | None = None
    at_most: float | None = None

    def holds(self, found: Finding) -> bool | None:
        """Decide whether the claim holds; None if the interval contains the claimed bound."""
        if self.at_least is None and self.at_most is None:
            return found.holds
        least, most = self.at_least, self.at_most
        low = found.low if found.low is not None else -float("inf")
        high = found.high if found.high is not None else float("inf")
        if (least is None or low >= least) and (most is None or high <= most):
            return True
        outside = (least is not None and high < least) or (most is not None and low > most)
        return False if outside else None


@cache
def read_claims() -> tuple[Claim, ...]:
    """Read the table of claims."""
    rows = json.loads(Path(__file__).with_name("claims.json").read_text(encoding="utf-8"))
    return tuple(Claim(**row) for row in rows)


def claims_about(study: str, finding: str) -> list[Claim]:
    """Return what the lectures say about a finding of a study.

    >>> claims_about("labels", "labels-scratch")[0].claim
    '100 examples + GPT-2 > 10,000 from scratch'
    """
    return [row for row in read_claims() if (row.study, row.finding) == (study, finding)]
