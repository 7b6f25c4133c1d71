"""What several ranks promise: 1, 2 and 4 ranks agree, checkpoints survive kills, FSDP2 is the same.

All at once in one program, as each needs many processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.adapt.registry import STRATEGIES
from firth.utils.files import sha256
from tests.training.conftest import SMALL, losses, notes
from tests.training.distributed.ranked_runs import run_ranks
from tests.training.distributed.test_ranks import gradients, state

pytestmark = pytest.mark.nightly

OBJECTIVES: dict[str, dict[str, Any]] = {  # bert: masked and NSP; gpt2 and bert have dropout
    "bert": {"preset": "bert-tiny"},
    "gpt2": {"preset": "gpt2", "overrides": {"model.num_layers": 2, "model.max_positions": 64}},
    "seq2seq": {"preset": "seq2seq-tiny"},
    "electra": {
        "preset": "electra-small",
        "overrides": {"model.num_layers": 2, "model.embedding_size": 16},
    },
}
LOGGED = {"log_every": 1, "max_grad_norm": 0, "keep_checkpoints": 99}


def run(shards: Path, out: Path, ranks: int, steps: int, **options: Any) -> dict[str, Any]:
    overrides = {**SMALL, **LOGGED, **options.pop("overrides", {})}
    shared = {"data": shards, "steps": steps, "device": "cpu", "preset": "bert-tiny"}
    return {**shared, "ranks": ranks, "out": out, "overrides": overrides, **options}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_one_two_and_four_ranks_have_the_same_gradients_and_losses(
    shards: Path, tmp_path: Path, name: str
) -> None:
    settings = OBJECTIVES[name]
    first = {"checkpoint_every": 1, **settings.get("overrides", {})}
    jobs = [run(shards, tmp_path / f"{n}", n, 50, **settings) for n in (1, 2, 4)]
    jobs += [
        run(shards, tmp_path / f"first-{n}", n, 1, **{**settings, "overrides": first})
        for n in (1, 2, 4)
    ]
    assert not any(sum(done["codes"]) for done in run_ranks(jobs, timeout=900))
    for ranks in (2, 4):
        assert losses(tmp_path / f"{ranks}") == pytest.approx(losses(tmp_path / "1"), rel=1e-4)
        other = gradients(tmp_path / f"first-{ranks}")
        for parameter, gradient in gradients(tmp_path / "first-1").items():
            torch.testing.assert_close(other[parameter], gradient, rtol=0, atol=1e-6)


def test_kills_also_between_the_files_of_a_checkpoint_do_not_change_the_bits(
    shards: Path, tmp_path: Path
) -> None:
    every = {"overrides": {"checkpoint_every": 2}}
    kills: dict[str, dict[str, Any]] = {
        "before a step": {"kill": [1, 3]},
        "before its file": {"kill_file": [1, "step-4"]},
        "before the index": {"kill_file": [0, "state.json"]},
        "before the main file": {"kill_file": [0, "step-4"]},
    }
    jobs = [run(shards, tmp_path / "whole", 2, 6, **every)]
    for name, kill in kills.items():
        jobs += [
            run(shards, tmp_path / name, 2, 6, **every, **kill),
            run(shards, tmp_path / name, 2, 6, **every, resume=True),
        ]
    done = run_ranks(jobs, timeout=900)
    for killed, resumed in zip(done[1::2], done[2::2], strict=True):
        assert -9 in killed["codes"]
        assert resumed["codes"] == [0, 0], resumed["errors"]
    assert "RankFailed" in done[1]["errors"][0]
    assert "Rank 1 ended" in done[1]["errors"][0]
    whole = sha256(tmp_path / "whole/model.safetensors")
    assert {sha256(tmp_path / name / "model.safetensors") for name in kills} == {whole}


def test_faults_of_one_rank_do_not_end_the_run(shards: Path, tmp_path: Path) -> None:
    every = {"overrides": {"checkpoint_every": 2, "model.dropout": 0, "model.attention_dropout": 0}}
    faults: dict[str, dict[str, Any]] = {
        "plain": {},
        "memory": {"no_memory": [1, 2]},
        "disk": {"full_disk": [1, "step-4"]},
    }
    jobs = [run(shards, tmp_path / name, 2, 6, **every, **fault) for name, fault in faults.items()]
    done = run_ranks(jobs, timeout=600)
    assert [result["codes"] for result in done] == [[0, 0]] * 3, done
    plain, memory, disk = (tmp_path / name for name in faults)
    assert losses(memory) == pytest.approx(losses(plain), rel=1e-5)
    assert state(memory, 6)["micro_batch_tokens"] > 0  # agreed by both ranks
    assert sha256(disk / "model.safetensors") == sha256(plain / "model.safetensors")
    assert not (disk / "checkpoints/step-4").exists()
    assert any("disk is full" in note for note in notes(disk))


def test_out_of_memory_on_one_rank_with_sharded_weights_ends_all_ranks(
    shards: Path, tmp_path: Path
) -> None:
    """The run is then continued with smaller micro-batches."""
    out = tmp_path / "run"
    plain = {"checkpoint_every": 2, "model.dropout": 0, "model.attention_dropout": 0}
    plain |= {"micro_batch_tokens": 128}
    how: dict[str, Any] = {"parallel": "shard", "overrides": plain}
    begun = time.monotonic()
    [failed] = run_ranks([run(shards, out, 2, 6, **how, no_memory=[1, 3])], timeout=100)
    assert time.monotonic() - begun < 60
    assert failed["codes"] == [1, 1]
    assert "Out of memory at step 4" in failed["errors"][1]
    assert "continues with 64" in failed["errors"][1]
    assert "Rank 1 (Out of memory" in failed["errors"][0]
    jobs = [run(shards, tmp_path / "whole", 2, 6, **how)]
    jobs.append(run(shards, out, 2, 6, **how, resume=True))
    assert [done["codes"] for done in run_ranks(jobs)] == [[0, 0]] * 2
    assert losses(out)[:2] == losses(tmp_path / "whole")[:2]
    assert losses(out) == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    assert state(out, 6)["micro_batch_tokens"] == 64


@pytest.mark.parametrize("parallel", ["replicate", "shard"])
def test_a_checkpoint_of_four_ranks_is_continued_by_two_and_three(
    shards: Path, tmp_path: Path, parallel: str
) -> None:
    how = {"parallel": parallel, "overrides": {"checkpoint_every": 3}}
    jobs = [run(shards, tmp_path / "whole", 4, 6, **how)]
    for ranks in (2, 3):
        out = tmp_path / f"{ranks}"
        jobs += [
            run(shards, out, 4, 6, **how, kill=[3, 4]),
            run(shards, out, ranks, 6, **how, resume=True),
        ]
    done = run_ranks(jobs, timeout=900)
    assert [sum(result["codes"]) for result in done[2::2]] == [0, 0], done
    for ranks in (2, 3):
        assert losses(tmp_path / f"{ranks}") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
        before, after = state(tmp_path / "whole", 6), state(tmp_path / f"{ranks}", 6)
        assert before["position"] == after["position"]
        assert before["tokens"] == after["tokens"]


def test_sharded_weights_have_the_losses_of_replicated_ones(shards: Path, tmp_path: Path) -> None:
    """Also with validations that are no improvement, after which no weights are written."""
    kinds = ("replicate", "shard")
    often = {"validate_every": 0.2, "min_lr_ratio": 0.0, "learning_rate": 0.1}
    jobs = [run(shards, tmp_path / kind, 2, 5, parallel=kind, overrides=often) for kind in kinds]
    assert not any(sum(done["codes"]) for done in run_ranks(jobs))
    found = losses(tmp_path / "replicate", "validation")
    assert len(found) == 5
    assert min(found) < found[-1]
    assert losses(tmp_path / "shard", "validation") == pytest.approx(found, rel=1e-5)
    assert losses(tmp_path / "shard") == pytest.approx(losses(tmp_path / "replicate"), rel=1e-5)
    names = {path.name for path in (tmp_path / "shard").glob("*.safetensors")}
    assert names == {"model.safetensors"}


def test_compiled_blocks_of_sharded_weights_have_the_losses_of_eager_ones(
    shards: Path, tmp_path: Path
) -> None:
    same = {"model.dropout": 0.0, "model.attention_dropout": 0.0}  # compiled masks are others
    jobs = [
        run(shards, tmp_path / kind, 2, 3, parallel="shard", overrides={**same, "compile": kind})
        for kind in ("false", "true")
    ]
    assert not any(sum(done["codes"]) for done in run_ranks(jobs))
    assert losses(tmp_path / "true") == pytest.approx(losses(tmp_path / "false"), rel=1e-4)


SPECS = (
    *sorted(STRATEGIES.keys() - {"freeze"}),
    "freeze:1",
    "probe-then-full",
    "probe:layer=mix",
    "lora:dora",
)


def test_fine_tuning_with_every_strategy_on_two_ranks_is_that_of_one(
    shards: Path, tmp_path: Path
) -> None:
    """BERT with biases, which bitfit trains, and dropout."""
    rows = [(f"a {'good' if i % 2 else 'bad'} story {i}", i % 2) for i in range(40)]
    for name, part in (("train", rows[:27]), ("dev", rows[27:])):
        lines = ["text\tlabel", *(f"{text}\t{label}" for text, label in part)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    files = {name: tmp_path / f"{name}.tsv" for name in ("train", "dev")}
    options = {"job": "finetune", "model": tmp_path / "bert", "task": "classify", **files}
    options |= {"epochs": 2.0, "batch_size": 8, "max_length": 24, "precision": "fp32"}
    options |= {
        "device": "cpu",
        "learning_rate": 1e-3,
        "overrides": {"log_every": 1, "patience": 0},
    }
    runs = [run(shards, tmp_path / "bert", 0, 20)] + [
        {**options, "strategy": strategy, "ranks": ranks, "out": tmp_path / f"{strategy}-{ranks}"}
        for strategy in SPECS
        for ranks in (1, 2)
    ]
    done = run_ranks(runs, timeout=900)[1:]
    for i, strategy in enumerate(SPECS):
        assert [run["codes"] for run in done[2 * i : 2 * i + 2]] == [[0], [0, 0]], done[2 * i + 1]
        one, two = tmp_path / f"{strategy}-1", tmp_path / f"{strategy}-2"
        assert len(losses(one)) > 4 or strategy == "probe"  # which is fitted in closed form
        for kind in ("step", "validation"):
            expected = pytest.approx(losses(one, kind), rel=1e-4)
            assert losses(two, kind) == expected, (strategy, kind)


def test_torchrun_names_a_killed_worker_and_restarts_the_run(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = [f"--set={name}={value}" for name, value in {**SMALL, "checkpoint_every": 5}.items()]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "-m", "firth", "pretrain", "--preset", "bert-tiny"]
    command += ["--data", str(shards), "--out", str(out), "--steps", "30", *settings]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (out / "checkpoints/step-10").exists() and process.poll() is None:
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "exitcode: -9" in errors
    assert any("Resuming from step" in note for note in notes(out))
