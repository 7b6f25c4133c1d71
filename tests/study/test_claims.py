"""The table of claims: its rows, its verdicts and its files."""

from __future__ import annotations

from pathlib import Path

import pytest

import firth
from firth.study.claims import Claim, read_claims
from firth.study.engine.study import Finding
from firth.study.registry import STUDIES

WORDS = {"source": "Lecture 1", "claim": "More is better.", "claimed": "2", "study": "labels"}


def finding(value: float | None, low: float | None, high: float | None) -> Finding:
    return Finding(name="x", text="", holds=None, value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "bounds", "holds"),
    [
        (3.0, 4.0, {"at_least": 2.0}, True),
        (1.0, 4.0, {"at_least": 2.0}, None),
        (0.5, 1.5, {"at_least": 2.0}, False),
        (3.0, None, {"at_least": 2.0}, True),  # a lower bound: beyond the data
        (1.0, None, {"at_least": 2.0}, None),
        (0.5, 1.5, {"at_most": 2.0}, True),
        (3.0, 4.0, {"at_most": 2.0}, False),
        (1.2, 1.8, {"at_least": 1.0, "at_most": 2.0}, True),
    ],
)
def test_a_claim_with_a_number_holds_if_the_interval_does(
    low: float, high: float | None, bounds: dict[str, float], holds: bool | None
) -> None:
    claim = Claim(**WORDS, finding="x", **bounds)
    assert claim.holds(finding(None, low, high)) is holds


def test_the_table() -> None:
    claims = read_claims()
    assert {claim.study for claim in claims} <= set(STUDIES) - {"claims"}
    assert len({(claim.study, claim.finding, claim.claim) for claim in claims}) == len(claims)


def test_a_study_that_fails_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "few.tsv"
    file.write_text("text\tlabel\ngood\tyes\nbad\tno\n")
    found = firth.run_study(
        "claims",
        data=file,
        out=tmp_path / "out",
        overrides={"studies": ("labels",)},
        workers=1,
        seeds=1,
    )
    assert {row["verdict"] for row in found.analysis.rows} == {"not measured"}
    assert any("labels" in note and "too few" in note for note in found.notes)
    assert "not measured" in (tmp_path / "out/claims.md").read_text()
