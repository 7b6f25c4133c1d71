"""The Python blocks of docs/adapting.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.adapt.apply import get_adapters

PAGE = Path(__file__).parents[2] / "docs/adapting.md"
ROWS = [("The soup was cold.", "negative"), ("I loved the soup.", "positive")] * 4


def test_the_python_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    own, two = blocks
    names: dict[str, Any] = {}
    exec(own, names)
    adapted = names["adapted"]
    printed = f"{adapted.trainable_parameters} {adapted.trainable_fraction}\n"
    assert capsys.readouterr().out == printed
    assert list(get_adapters(firth.load("runs/by-hand").network)) == ["default"]

    overrides = {"steps": 1, "precision": "fp32"}
    for seed, out in enumerate(("runs/reviews", "runs/other")):
        given: dict[str, Any] = {"strategy": "lora", "overrides": overrides, "seed": seed}
        firth.finetune("stories-encoder", task="classify", train=ROWS, dev=ROWS, out=out, **given)
    capsys.readouterr()
    names = {}
    exec(two, names)
    assert "label" in capsys.readouterr().out
    merged, kept = firth.load("runs/merged"), names["model"].predict("The soup was cold.")
    assert merged.predict("The soup was cold.")["scores"] == pytest.approx(kept["scores"], abs=1e-5)
    assert set(merged.network.heads) == {"classify"}
