"""Faults in the middle of a run: kills, signals, exhausted memory, full disks, divergence."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.jobs import pretraining
from firth.jobs.pretraining import PretrainResult, pretrain
from firth.objectives.batch import Batch
from firth.training.checkpoint import Checkpoints
from firth.training.loop import Callbacks, Diverged, TrainingLoop
from firth.training.plateau import UnigramBaseline, plateau_note
from firth.training.run_directory import read_metrics
from firth.utils.errors import DeviceError, FirthError, Interrupted
from tests.training.conftest import SMALL, Killed, kill_at, losses, notes
from tests.training.killed_runs import run_in_children


def small(
    shards: Path, out: Path, callbacks: Callbacks | None = None, **more: Any
) -> PretrainResult:
    overrides = SMALL | {"model.dropout": 0.0, "log_every": 1} | more.pop("overrides", {})
    options = {"preset": "encoder-tiny", "data": shards, "out": out, "overrides": overrides}
    return pretrain(**options, callbacks=callbacks, **more)


# ---- killed and stopped


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "objective"),
    [
        ("bert-tiny", "masked-nsp"),
        pytest.param("decoder-tiny", "causal", marks=pytest.mark.nightly),
        pytest.param("seq2seq-tiny", "span-corruption", marks=pytest.mark.nightly),
        pytest.param("decoder-tiny", "prefix-denoising", marks=pytest.mark.nightly),
        pytest.param("seq2seq-tiny", "prefix-seq2seq", marks=pytest.mark.nightly),
        pytest.param("electra-small", "replaced", marks=pytest.mark.nightly),
    ],
)
def test_a_run_killed_twice_ends_with_the_same_bits(
    preset: str, objective: str, shards: Path, tmp_path: Path
) -> None:
    overrides = SMALL | {"checkpoint_every": 5, "log_every": 1, "model.num_layers": 1}
    if preset == "electra-small":
        overrides["model.embedding_size"] = 16
    if objective == "prefix-seq2seq":
        overrides["model.share_encoder_decoder"] = True
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    common = {"preset": preset, "objective": objective, "data": shards, "steps": 16}
    common["overrides"] = overrides
    resumed = {"out": killed, "resume": True}
    runs = [{"out": whole}, {"out": killed, "kill_at": 7}, {**resumed, "kill_at": 13}, resumed]
    run_in_children("pretrain", [common | run for run in runs])
    for name in ("model.safetensors", "checkpoints/step-16/tensors.safetensors"):
        one, other = (hashlib.sha256((run / name).read_bytes()) for run in (whole, killed))
        assert one.digest() == other.digest(), name
    steps = [line["step"] for line in read_metrics(killed) if line["kind"] == "step"]
    assert steps == list(range(1, 17))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_run_which_can_be_resumed(
    number: signal.Signals, shards: Path, tmp_path: Path
) -> None:
    def send(step: int, part: Batch) -> None:
        if step == 3:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="resume"):
        small(shards, tmp_path, Callbacks(before_micro_batch=send), steps=6)
    assert signal.getsignal(number) is before
    found = Checkpoints(tmp_path / "checkpoints").newest()
    assert found is not None
    assert small(shards, tmp_path, resume=True, steps=6).steps == 6
    assert f"Resuming from step {found.step}." in notes(tmp_path)
    assert len(losses(tmp_path)) == 6


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_process(number: signal.Signals, shards: Path, tmp_path: Path) -> None:
    """While the run is alive, no other process may train in its directory."""
    out, common = tmp_path / "run", {"steps": 100_000, "overrides": {"compile": "false"}}
    words = ["--preset", "encoder-tiny", "--data", shards, "--out", out, "--steps", "100000"]
    settings = SMALL | {"model.dropout": 0.0, "log_every": 1, "compile": "false"}
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "firth", "pretrain", *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while not (out / "metrics.jsonl").exists() or len(losses(out)) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    with pytest.raises(FirthError, match="Another process is training in"):
        small(shards, out, resume=True, **common)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    found = Checkpoints(out / "checkpoints").newest()
    assert found is not None
    assert found.step >= 3
    with pytest.raises(Killed):
        small(shards, out, kill_at(found.step + 1), resume=True, **common)
    assert f"Resuming from step {found.step}." in notes(out)


def test_a_resumed_run_uses_the_matrix_library_of_its_start(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a bf16 product on a CPU without bf16, torch does not use oneDNN at the start."""
    common: dict[str, Any] = {"steps": 6, "overrides": {"checkpoint_every": 2}}
    seen: set[bool] = set()
    look = Callbacks(before_micro_batch=lambda *_: seen.add(torch.backends.mkldnn.enabled))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with pytest.raises(Killed):
        small(shards, tmp_path, kill_at(4), **common)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    small(shards, tmp_path, look, resume=True, **common)
    assert seen == {False}
    assert torch.backends.mkldnn.enabled


def test_a_corrupted_newest_checkpoint_is_skipped(shards: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"steps": 10, "overrides": {"checkpoint_every": 3}}
    with pytest.raises(Killed):
        small(shards, tmp_path, kill_at(8), **common)
    file = tmp_path / "checkpoints/step-6/tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert small(shards, tmp_path, resume=True, **common).steps == 10
    assert any("step-6" in note for note in notes(tmp_path))
    assert "Resuming from step 3." in notes(tmp_path)


def test_without_a_checkpoint_a_resumed_run_starts_at_step_0(shards: Path, tmp_path: Path) -> None:
    small(shards, tmp_path, steps=2, resume=True)
    [note] = notes(tmp_path)
    assert "step 0" in note


# ---- memory and disk


def gpu_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def cpu_out_of_memory() -> None:
    torch.empty(1 << 52)  # more than any address space: the real error of torch's CPU allocator


@pytest.mark.parametrize("exhaust", [gpu_out_of_memory, cpu_out_of_memory])
def test_out_of_memory_halves_the_micro_batch(
    exhaust: Callable[[], None], shards: Path, tmp_path: Path
) -> None:
    def too_large(step: int, part: Batch) -> None:
        if len(part.inputs.tokens) > 100:
            exhaust()

    overrides = {"optimizer": "adamw", "full_sentences": False}  # all batches have 256 tokens
    small(shards, tmp_path / "plain", steps=6, overrides=overrides)
    callbacks = Callbacks(before_micro_batch=too_large)
    small(shards, tmp_path / "halved", callbacks, steps=6, overrides=overrides)
    first, second = notes(tmp_path / "halved")
    assert "128 tokens" in first
    assert "64 tokens" in second
    found = Checkpoints(tmp_path / "halved/checkpoints").newest()
    assert found is not None
    assert found.state["micro_batch_tokens"] == 64
    assert losses(tmp_path / "halved") == pytest.approx(losses(tmp_path / "plain"), rel=1e-5)


@pytest.mark.parametrize("restores", [True, False])
def test_a_failed_gpu_is_one_sentence_and_the_run_resumes(
    restores: bool, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "CUDA error: unspecified launch failure\nSearch for it"

    def fail(*arguments: Any) -> None:
        raise torch.AcceleratorError(message)

    def at_step_4(step: int, part: Batch) -> None:
        if step == 4:
            if not restores:  # a failed GPU refuses this call, too
                monkeypatch.setattr(torch, "set_rng_state", fail)
            fail()

    small(shards, tmp_path / "whole", steps=6)
    options: dict[str, Any] = {"steps": 6, "overrides": {"checkpoint_every": 3}}
    with pytest.raises(DeviceError, match=r"step 4 \(.*launch failure\); .* from step 3\.$"):
        small(shards, tmp_path / "failed", Callbacks(before_micro_batch=at_step_4), **options)
    monkeypatch.undo()
    small(shards, tmp_path / "failed", resume=True, **options)
    assert losses(tmp_path / "failed") == losses(tmp_path / "whole")


def test_a_sequence_that_does_not_fit_into_memory_is_an_error(shards: Path, tmp_path: Path) -> None:
    def always(step: int, part: Batch) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(FirthError, match="does not fit into memory"):
        small(shards, tmp_path, Callbacks(before_micro_batch=always), steps=6)


def test_training_continues_while_the_disk_is_full(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at step 10 and has room again at step 15."""
    write, found = Checkpoints._publish, dict[int, set[str]]()

    def publish(self: Checkpoints, step: int, partial: Path) -> Path:
        found[step] = {path.name for path in self.directory.glob("step-*")}
        if step == 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, step, partial)

    monkeypatch.setattr(Checkpoints, "_publish", publish)
    overrides = {"checkpoint_every": 5, "keep_checkpoints": 1, "model.num_layers": 2}
    assert small(shards, tmp_path, steps=20, overrides=overrides).steps == 20
    assert found == {0: set(), 5: {"step-0"}, 10: {"step-5"}, 15: {"step-5"}, 20: {"step-15"}}
    [note] = notes(tmp_path)
    assert "disk is full" in note


# ---- losses


def test_a_diverging_run_is_rolled_back_with_a_lower_learning_rate(
    shards: Path, tmp_path: Path
) -> None:
    overrides = {"learning_rate": 1e30, "optimizer": "adamw", "warmup": 0.0}
    with pytest.raises(Diverged, match="3 rollbacks"):
        small(shards, tmp_path, steps=400, overrides=overrides)
    found = notes(tmp_path)
    assert any("was skipped" in note for note in found)
    factors = [note.split(", with ")[1][:4] for note in found if "in a row" in note]
    assert factors == ["0.5 ", "0.25", "0.12"]


def test_a_few_steps_without_finite_loss_are_skipped(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[torch.nn.Module] = []
    build = pretraining.build

    def keep(*arguments: Any) -> Any:
        built.append(build(*arguments))
        return built[0]

    monkeypatch.setattr(pretraining, "build", keep)
    good: list[torch.Tensor] = []

    def poison(step: int, part: Batch) -> None:
        weight = next(iter(built[0].network.heads["language"].parameters())).data
        if step in (3, 4):
            good.append(weight.clone())
            weight[:] = float("nan")
        elif step == 5:
            weight[:] = good[0]

    trained = small(shards, tmp_path, Callbacks(before_micro_batch=poison), steps=8)
    assert [note.split()[1] for note in notes(tmp_path)] == ["4", "5"]
    assert trained.loss is not None
    assert trained.loss < 10


def test_a_plateau_is_reported(shards: Path, tmp_path: Path) -> None:
    """With a learning rate of almost zero not even token frequencies are learned."""
    small(shards, tmp_path, steps=120, overrides={"learning_rate": 1e-6})
    [note] = notes(tmp_path)
    assert "above the unigram baseline" in note
    assert "another learning rate" in note


@pytest.mark.parametrize(
    ("post_norm", "advice"), [(False, "a smaller learning rate"), (True, "norm_position=pre")]
)
def test_a_plateau_near_the_baseline(post_norm: bool, advice: str) -> None:
    baseline = UnigramBaseline(5.68, 0.05)
    for loss, near in ((5.4, True), (6.0, True), (7.35, False)):
        note = plateau_note(loss, baseline, post_norm)
        assert (f"{loss:.2f}, near" in note, advice in note) == (near, near)


def test_asynchronous_metrics_change_nothing(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the loop starts a step before it has read the losses of the last."""
    init = TrainingLoop.__init__

    def ahead(self: TrainingLoop, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.asynchronous = True

    runs = {"waits": small(shards, tmp_path / "waits", steps=12)}
    monkeypatch.setattr(TrainingLoop, "__init__", ahead)
    runs["ahead"] = small(shards, tmp_path / "ahead", steps=12)
    first, second = (run.model.network.state_dict() for run in runs.values())
    assert all(torch.equal(first[name], second[name]) for name in first)
    names = ("step", "loss", "grad_norm", "tokens")
    one, other = (
        [[line[n] for n in names] for line in read_metrics(tmp_path / run) if "grad_norm" in line]
        for run in runs
    )
    assert one == other
    assert [step for step, *_ in other] == list(range(1, 13))
