"""One and two ranks: the same gradients, losses, documents, predictions and vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from firth.training.checkpoint import load_checkpoint
from tests.training.conftest import SMALL, losses
from tests.training.distributed.ranked_runs import run_ranks

SETTINGS = {**SMALL, "checkpoint_every": 1, "keep_checkpoints": 9, "max_grad_norm": 0}
STEPS = 3


@pytest.fixture(scope="module")
def runs(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """BERT with NSP and dropout: on one rank and on two."""
    folder = tmp_path_factory.mktemp("ranks")
    shared = {"preset": "bert-tiny", "data": shards, "steps": STEPS, "device": "cpu"}

    def run(name: str, ranks: int, **options: Any) -> dict[str, Any]:
        out = folder / name
        return {**shared, "ranks": ranks, "out": out, "overrides": SETTINGS, **options}

    pairs = [f"The dog ran home {'again ' * i}\tIt sat down.\n" for i in range(3)]
    (folder / "pairs.tsv").write_text("text_a\ttext_b\n" + "".join(pairs))
    inputs: list[dict[str, Any]] = []
    for ranks in (0, 2):
        predict = ["predict", "one", "--task", "next-sentence", "--data", "pairs.tsv", "--out"]
        embed = ["embed", "one", "pairs.tsv", "--column", "text_a", "--batch-tokens", "16"]
        for command in ([*predict, f"{ranks}.jsonl"], [*embed, "--out", f"{ranks}.npy"]):
            words = [str(folder / w) if "." in w or w == "one" else w for w in command]
            inputs.append({"ranks": ranks, "command": [*words, "--device", "cpu"]})
    return folder, run_ranks([run("one", 1), run("two", 2), *inputs])


def gradients(run: Path) -> dict[str, Tensor]:
    """The gradients of the first step: ten times AdamW's mean, twenty times Muon's."""
    weights = load_checkpoint(1, run / "checkpoints/step-1").weights
    factors = {"optimizer.adamw.exp_avg.": 10, "optimizer.muon.momentum.": 20}
    return {
        name.removeprefix(prefix): weights[name] * factor
        for prefix, factor in factors.items()
        for name in weights
        if name.startswith(prefix)
    }


def state(run: Path, step: int) -> dict[str, Any]:
    content = json.loads((run / f"checkpoints/step-{step}/state.json").read_text())
    return dict(content["state"])


def test_all_runs_end_as_they_should(runs: tuple[Path, list[Any]]) -> None:
    codes = [run["codes"] for run in runs[1]]
    assert codes == [[0], [0, 0], [0], [0], [0, 0], [0, 0]], [run["errors"] for run in runs[1]]


def test_gradients_and_losses_do_not_depend_on_the_number_of_ranks(
    runs: tuple[Path, list[Any]],
) -> None:
    one, other = (gradients(runs[0] / run) for run in ("one", "two"))
    assert one.keys() == other.keys()
    assert len(one) > 30
    for parameter, gradient in one.items():
        torch.testing.assert_close(other[parameter], gradient, rtol=0, atol=1e-6)
    assert losses(runs[0] / "two") == pytest.approx(losses(runs[0] / "one"), rel=1e-5)
    one_valid, two_valid = (losses(runs[0] / run, "validation") for run in ("one", "two"))
    assert two_valid == pytest.approx(one_valid, rel=1e-6)
    for step in range(1, STEPS + 1):
        first, second = state(runs[0] / "one", step), state(runs[0] / "two", step)
        assert first["position"] == second["position"]
        assert first["tokens"] == second["tokens"]


def test_rank_zero_writes_the_model_and_each_rank_a_log_and_its_part_of_a_checkpoint(
    runs: tuple[Path, list[Any]],
) -> None:
    two = runs[0] / "two"
    assert losses(two / "metrics.rank-1.jsonl") == losses(two)
    files = sorted(path.name for path in (two / "checkpoints/step-1").iterdir())
    assert files == [
        "state.json",
        "tensors-0-of-2.safetensors",
        "tensors-1-of-2.safetensors",
    ]


def test_predict_and_embed_divide_their_inputs_and_keep_the_order(
    runs: tuple[Path, list[Any]],
) -> None:
    folder, done = runs
    one, two = ((folder / f"{ranks}.jsonl").read_text().splitlines() for ranks in (0, 2))
    assert two == one
    assert len(set(one)) == 3
    expected, found = (np.load(folder / f"{ranks}.npy") for ranks in (0, 2))
    assert len(expected) == 3
    np.testing.assert_array_equal(found, expected)
    for run in done[-2:]:
        assert run["output"][0]
        assert not run["output"][1] + run["errors"][1]  # only rank 0 prints
