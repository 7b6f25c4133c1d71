"""The table of claims: its rows, its verdicts and its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import firth
from firth.study import claims
from firth.study.claims import Claim, ClaimSettings, read_claims
from firth.study.engine.study import Finding
from firth.study.registry import STUDIES
from firth.utils.errors import UsageError

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


def test_values_below_the_data_and_large_ones_are_shown_as_such() -> None:
    found = Finding(
        name="x", text="", holds=None, value=0.0, low=0.0, high=1900.0, unit="labels", smallest=10.0
    )
    row = claims._row(Claim(**WORDS, finding="x"), {"x": found}, "", {})
    assert row["measured"] == "fewer than 10 labels"
    assert row["interval"] == "fewer than 10 to 1,900"


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


def test_overrides_keep_lists() -> None:
    settings = ClaimSettings(overrides=("labels.labels=10", "100", "masking.mask_probs=0.15"))
    assert settings.of("labels") == {"labels": "10,100"}
    assert settings.of("masking") == {"mask_probs": "0.15"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"studies": "claims"}, "claims"),
        ({"studies": "lables"}, "did you mean labels"),
        ({"overrides": "lables.shots=2"}, "lables.shots"),
        ({"overrides": "labels.shot=2"}, "did you mean shots"),
        ({"overrides": "labels.batch_size=0"}, "batch_size"),
        ({"overrides": "10,labels.shots=2"}, "10"),
        ({"studies": "labels", "overrides": "masking.words=9"}, "masking.words"),
    ],
)
def test_wrong_settings(wrong: dict[str, str], named: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=named):
        firth.run_study("claims", out=tmp_path, overrides=wrong)


def test_inputs_go_to_the_studies_that_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("text\tlabel\ngood\tyes\n")
    calls: dict[str, dict[str, Any]] = {}

    def record(name: str, **options: Any) -> None:
        calls[name] = options
        raise UsageError("not run")

    monkeypatch.setattr(claims, "run_study", record)
    models = ("stories-encoder", "stories-decoder")
    given = {"data": file, "test": file, "columns": {"label": "label"}, "models": models}
    found = firth.run_study("claims", out=tmp_path / "out", **given)
    passed = {name: set(options) & set(given) for name, options in calls.items()}
    assert passed["domain-shift"] == set()
    assert passed["labels"] == set(given)
    assert passed["context"] == {"models"}
    assert (calls["labels"]["models"], calls["context"]["models"]) == (models[:1], models)
    assert any("two domains" in note for note in found.notes)
