"""What goes wrong in the middle of a run, caused for real."""

from __future__ import annotations

import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.jobs.pretraining import pretrain
from firth.objectives.batch import Batch
from firth.training.checkpoint import Checkpoints
from firth.training.loop import Callbacks, Diverged, TrainingLoop
from firth.training.run_directory import read_metrics
from firth.utils.errors import FirthError, InputError
from tests.training.conftest import SMALL, Start

STEPS = 40


def sums(run: Path) -> dict[str, str]:
    """The SHA-256 of weights and optimizer after the last step."""
    weights = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
    tensors = run / f"checkpoints/step-{STEPS}/tensors.safetensors"
    everything = hashlib.sha256(tensors.read_bytes()).hexdigest()
    return {"weights": weights, "everything": everything}


def step_of(run: Path) -> int:
    try:
        lines = read_metrics(run)
    except FileNotFoundError:
        return 0
    return max((line.get("step", 0) for line in lines), default=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "objective"),
    [
        ("bert-tiny", "masked-nsp"),
        pytest.param("decoder-tiny", "causal", marks=pytest.mark.nightly),
        ("seq2seq-tiny", "span-corruption"),
        pytest.param("electra-small", "replaced", marks=pytest.mark.nightly),
    ],
)
def test_killed_twice_it_ends_with_the_same_bits(
    preset: str, objective: str, shards: Path, tmp_path: Path, start: Start
) -> None:
    overrides: dict[str, Any] = {"checkpoint_every": 7, "log_every": 1, "model.num_layers": 1}
    if preset == "electra-small":
        overrides["model.embedding_size"] = 16
    options = ["--preset", preset, "--objective", objective, "--data", shards]
    options += ["--steps", str(STEPS)]
    whole = start(*options, "--out", tmp_path / "whole", **overrides)
    draw = random.Random(time.time_ns())
    out = tmp_path / "killed"
    for resume in ([], ["--resume"]):
        process = start(*options, "--out", out, *resume, **overrides)
        target = step_of(out) + draw.randint(1, 12)
        while process.poll() is None and step_of(out) < target:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (out / "model.safetensors").exists()  # nothing half done looks finished
    last = start(*options, "--out", out, "--resume", **overrides)
    _, stderr = last.communicate(timeout=300)
    assert last.returncode == 0, stderr
    assert "Resuming from step" in stderr
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    assert sums(out) == sums(tmp_path / "whole")
    steps = [line["step"] for line in read_metrics(out) if line["kind"] == "step"]
    assert steps == list(range(1, STEPS + 1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_keeps_everything_and_says_so(
    number: signal.Signals, shards: Path, tmp_path: Path, start: Start
) -> None:
    options = ["--preset", "encoder-tiny", "--data", shards, "--out", tmp_path / "run"]
    options += ["--steps", "100000"]
    process = start(*options, log_every=1)
    while step_of(tmp_path / "run") < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    found = Checkpoints(tmp_path / "run/checkpoints").newest()
    assert found is not None
    assert found.step >= 3


def test_a_second_process_refuses(shards: Path, tmp_path: Path, start: Start) -> None:
    options = ["--preset", "encoder-tiny", "--data", shards, "--out", tmp_path / "run"]
    options += ["--steps", "100000"]
    first = start(*options, log_every=1)
    while step_of(tmp_path / "run") < 1:
        time.sleep(0.01)
    second = start(*options, "--resume", log_every=1)
    _, stderr = second.communicate(timeout=300)
    assert second.returncode == 1
    assert "Another process is training in" in stderr
    first.kill()
    first.communicate()


def small(shards: Path, out: Path, callbacks: Callbacks | None = None, **more: Any) -> Any:
    overrides = SMALL | {"model.dropout": 0.0, "log_every": 1} | more.pop("overrides", {})
    return pretrain(
        preset="encoder-tiny",
        data=shards,
        out=out,
        overrides=overrides,
        callbacks=callbacks,
        **more,
    )


def test_out_of_memory_halves_what_is_computed_at_once(shards: Path, tmp_path: Path) -> None:
    def too_much(step: int, part: Batch) -> None:
        if len(part.inputs.tokens) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")

    adam = {"optimizer": "adamw"}
    small(shards, tmp_path / "plain", steps=6, overrides=adam)
    small(
        shards, tmp_path / "scarce", Callbacks(before_micro_batch=too_much), steps=6, overrides=adam
    )
    notes = [line["note"] for line in read_metrics(tmp_path / "scarce") if line["kind"] == "note"]
    assert "128 tokens" in notes[0]
    assert "64 tokens" in notes[1]
    found = Checkpoints(tmp_path / "scarce/checkpoints").newest()
    assert found is not None
    assert found.state["micro_batch_tokens"] == 64
    plain, scarce = (
        [line["loss"] for line in read_metrics(tmp_path / name) if line["kind"] == "step"]
        for name in ("plain", "scarce")
    )
    assert scarce == pytest.approx(plain, rel=1e-5)


MEMORY = """
import resource, sys
import matplotlib.backends.backend_agg, matplotlib.figure  # the curve's, while there is room
import torch
from pathlib import Path
from firth.jobs.pretraining import pretrain
from firth.training.loop import Callbacks

def limit(step, part):
    most = resource.RLIM_INFINITY
    if step == 1 and not hasattr(limit, "done"):
        limit.done = True
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = used + 150_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

trained = pretrain(
    preset="encoder-tiny", data=sys.argv[1], out=sys.argv[2], steps=3,
    overrides={"batch_tokens": "32768", "max_length": "128", "precision": "fp32",
               "validate_every": 1.0},
    callbacks=Callbacks(before_micro_batch=limit),
)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Address space is limited on Linux only.")
def test_real_exhaustion_of_memory_is_survived(shards: Path, tmp_path: Path) -> None:
    """The process may take only 150 MB more in the first attempt at its second step."""
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, shards, out], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    notes = [line["note"] for line in read_metrics(out) if line["kind"] == "note"]
    assert any("Out of memory at step 2" in note for note in notes)


def test_one_sequence_too_long_for_memory_is_said(shards: Path, tmp_path: Path) -> None:
    def never(step: int, part: Batch) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(FirthError, match="does not fit into memory"):
        small(shards, tmp_path, Callbacks(before_micro_batch=never), steps=6)


def test_a_loss_that_is_not_finite_is_skipped_then_the_run_goes_back(
    shards: Path, tmp_path: Path
) -> None:
    """The learning rate is absurd until the run has been slowed down twice."""
    with pytest.raises(Diverged, match="3 rollbacks"):
        small(
            shards,
            tmp_path,
            steps=400,
            overrides={"learning_rate": 1e30, "optimizer": "adamw", "warmup": 0.0},
        )
    notes = [line["note"] for line in read_metrics(tmp_path) if line["kind"] == "note"]
    assert any("was skipped" in note for note in notes)
    assert [note.split(", with ")[1][:4] for note in notes if "in a row" in note] == [
        "0.5 ",
        "0.25",
        "0.12",
    ]


def test_a_few_bad_steps_are_skipped_and_forgotten(shards: Path, tmp_path: Path) -> None:
    poisoned = Callbacks()
    holder: dict[str, Any] = {}

    def poison(step: int, part: Batch) -> None:
        if step in (3, 4):
            part.inputs.tokens[:] = part.inputs.tokens  # the text stays; the network is hurt:
            weight = next(iter(holder["network"].heads["language"].parameters()))
            holder.setdefault("kept", weight.data.clone())
            weight.data[:] = float("nan")
        elif "kept" in holder:
            next(iter(holder["network"].heads["language"].parameters())).data[:] = holder["kept"]

    from firth.jobs import pretraining

    original = pretraining.build

    def build(*arguments: Any) -> Any:
        module = original(*arguments)
        holder["network"] = module.network
        return module

    poisoned.before_micro_batch = poison
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "build", build)
        trained = small(shards, tmp_path, poisoned, steps=8)
    notes = [line["note"] for line in read_metrics(tmp_path) if line["kind"] == "note"]
    assert [note.split()[1] for note in notes] == ["4", "5"]
    assert trained.loss is not None
    assert trained.loss < 10


@pytest.mark.slow
def test_a_corrupted_newest_checkpoint_is_passed_over(
    shards: Path, tmp_path: Path, start: Start
) -> None:
    options = ["--preset", "encoder-tiny", "--data", shards, "--out", tmp_path / "run"]
    options += ["--steps", "100000"]
    process = start(*options, log_every=1, checkpoint_every=4)
    while step_of(tmp_path / "run") < 10:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    checkpoints = Checkpoints(tmp_path / "run/checkpoints")
    newest = checkpoints.newest()
    assert newest is not None
    file = newest.path / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    process = start(*options, "--resume", log_every=1, checkpoint_every=4)
    while process.poll() is None and step_of(tmp_path / "run") <= newest.step:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert f"step-{newest.step}" in stderr
    assert "Resuming from step" in stderr
    assert f"Resuming from step {newest.step}." not in stderr


def test_no_checkpoint_yet_begins_at_step_0_and_says_so(shards: Path, tmp_path: Path) -> None:
    notes: list[str] = []

    def callback(kind: str, figures: dict[str, Any]) -> None:
        if kind == "note":
            notes.append(figures["note"])

    small(shards, tmp_path / "run", steps=2, resume=True, callback=callback)
    assert len(notes) == 1
    assert "step 0" in notes[0]


def test_resuming_another_run_names_what_differs(shards: Path, tmp_path: Path) -> None:
    def stop(step: int, part: Batch) -> None:
        if step == 2:
            raise InputError("enough")

    with pytest.raises(InputError):
        small(shards, tmp_path, Callbacks(before_micro_batch=stop), steps=6)
    with pytest.raises(FirthError, match=r"training\.steps 6, not 7;"):
        small(shards, tmp_path, steps=7, resume=True)


def test_a_full_disk_costs_no_good_checkpoint(shards: Path, tmp_path: Path) -> None:
    """A file system of 6 MB holds two checkpoints and not three; later there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=7m", "tmpfs", disk], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    filler = disk / "filler"
    try:

        def fill(step: int, part: Batch) -> None:
            if step == 6:
                free = 7_000_000 - sum(f.stat().st_size for f in disk.rglob("*") if f.is_file())
                filler.write_bytes(b"x" * max(0, free - 40_000))
            if step == 14:
                filler.unlink()

        notes: list[str] = []
        trained = small(
            shards,
            disk / "run",
            Callbacks(before_micro_batch=fill),
            steps=20,
            overrides={"checkpoint_every": 5, "keep_checkpoints": 1, "model.num_layers": 2},
            callback=lambda kind, figures: notes.append(figures.get("note", "")),
        )
        assert any("disk is full" in note and "continues" in note for note in notes), notes
        assert trained.steps == 20
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    ("norm_position", "advice"), [("pre", "a smaller learning rate"), ("post", "norm_position=pre")]
)
def test_a_plateau_is_named_while_it_runs(
    norm_position: str, advice: str, shards: Path, tmp_path: Path
) -> None:
    """A rate of almost nothing learns token frequencies at best."""
    notes: list[str] = []

    def callback(kind: str, figures: dict[str, Any]) -> None:
        if kind == "note":
            notes.append(figures["note"])

    overrides = {"learning_rate": 1e-6, "model.norm_position": norm_position}
    small(shards, tmp_path, steps=120, overrides=overrides, callback=callback)
    assert len(notes) == 1
    assert "unigram baseline" in notes[0]
    assert advice in notes[0]


def test_looking_at_a_steps_figures_one_step_later_changes_nothing(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the loop begins a step before it has read the losses of the last."""
    init = TrainingLoop.__init__

    def ahead(self: TrainingLoop, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.asynchronous = True

    runs = {}
    for name in ("waits", "ahead"):
        if name == "ahead":
            monkeypatch.setattr(TrainingLoop, "__init__", ahead)
        runs[name] = small(shards, tmp_path / name, steps=12)
    first, second = (runs[name].model.network.state_dict() for name in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    figures = [
        [
            (line["step"], line["loss"], line["grad_norm"], line["tokens"])
            for line in found
            if "grad_norm" in line
        ]
        for found in (read_metrics(tmp_path / name) for name in runs)
    ]
    assert figures[0] == figures[1]
    assert [step for step, *_ in figures[1]] == list(range(1, 13))
