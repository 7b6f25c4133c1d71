"""Chapter: pre-train two small models and watch them improve."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.demo.workspace import RUN_FILE, Findings, Workspace, command, remove_previous
from firth.demo.workspace import step_callback as steps_as_progress
from firth.jobs.parent_models import untrained_model
from firth.jobs.pretraining import pretrain
from firth.model import Model, load
from firth.training.log import Metrics
from firth.training.loop import Callbacks
from firth.training.run_directory import read_metrics
from firth.utils.figures import DataTable, Figure, KeyNumber, KeyNumbers, LineChart, Point

BLANK = "The [MASK] barked loudly at the mailman."
PROMPT = "Once upon a time"
NUM_NEW_TOKENS = 20
STEP_TOKENS = 1024  # a small batch: many steps for few tokens
NUM_SMOOTHED = 10  # steps averaged to a point of the curve


@dataclass(frozen=True)
class Snapshot:
    """What a model predicted after a number of tokens."""

    tokens: int
    prediction: str


def guess(model: Model) -> str:
    """Return the most probable words for the blank."""
    words = model.fill(BLANK)[0][:3]
    return ", ".join(f"{word.token} {word.score:.0%}" for word in words)


def continuation(model: Model) -> str:
    """Return the most probable continuation of the prompt."""
    return f"{PROMPT} {model.generate(PROMPT, max_new_tokens=NUM_NEW_TOKENS).strip()} …"


PREDICTIONS: dict[str, Callable[[Model], str]] = {
    "encoder-tiny": guess,
    "decoder-tiny": continuation,
}


def live_pretraining(workspace: Workspace) -> Findings:
    """Pre-train an encoder and a decoder; show the losses, and predictions that improve."""
    budgets = {
        "encoder-tiny": workspace.budget.encoder_tokens,
        "decoder-tiny": workspace.budget.decoder_tokens,
    }
    curves, tables = {}, []
    values: dict[str, dict[str, Any]] = {}
    commands = workspace.prepare_commands[1:]
    for preset, tokens in budgets.items():
        options = {
            "data": workspace.shards,
            "tokens": tokens,
            "batch_tokens": STEP_TOKENS,
            "overrides": {"validate_every": 0.5},
        }
        run, snapshots = _train(workspace, preset, options)
        validated, losses = _losses(run)
        curves[preset] = losses
        tables.append(_improvement(preset, snapshots))
        commands.append(command("pretrain", preset=preset, **options, out=workspace.out / preset))
        values[preset] = {
            "tokens": tokens,
            "losses": validated,
            "snapshots": [vars(one) for one in snapshots],
        }
    chart = LineChart(
        "Loss while training",
        "thousand tokens read",
        "training loss",
        curves,
        caption="The loss is the surprise at the right token, on average: lower is better.",
    )
    chance = math.log(len(workspace.tokenizer))
    end = {preset: found["losses"][-1] for preset, found in values.items()}
    facts = [
        KeyNumber(f"{chance:.1f}", "loss of a model that knows nothing: every token as likely")
    ]
    facts += [
        KeyNumber(f"{loss:.2f}", f"loss of {name} on unseen text") for name, loss in end.items()
    ]
    figures: list[Figure] = [KeyNumbers(tuple(facts)), chart, *tables]
    return Findings(figures, {"chance": chance, **values}, commands)


def _train(
    workspace: Workspace, preset: str, options: dict[str, Any]
) -> tuple[Path, list[Snapshot]]:
    """Pre-train a model; return its run and what it predicted before, half-way and after."""
    out, predict = workspace.out / preset, PREDICTIONS[preset]
    seed, tokenizer = workspace.seed, workspace.tokenizer
    before = untrained_model(preset, tokenizer, scratch=True, seed=seed)
    snapshots = [Snapshot(0, predict(before))]
    show = steps_as_progress(f"pre-training {preset}", workspace.progress)
    half = options["tokens"] / 2
    read = 0

    def callback(kind: str, metrics: Metrics) -> None:
        nonlocal read
        read = metrics.get("tokens", read)
        show(kind, metrics)

    def halfway() -> None:  # the model has just been saved as the best so far
        if len(snapshots) == 1 and read >= 0.95 * half:
            snapshots.append(Snapshot(read, predict(load(out / "best"))))

    remove_previous(out, RUN_FILE)
    run = pretrain(
        preset=preset,
        **options,
        out=out,
        seed=seed,
        callback=callback,
        callbacks=Callbacks(on_improvement=halfway),
    )
    return run.path, [*snapshots[:2], Snapshot(run.tokens, predict(run.model))]


def _losses(run: Path) -> tuple[list[float], tuple[Point, ...]]:
    """Return the validation losses of a run, and its training loss averaged over some steps."""
    lines = read_metrics(run)
    steps = [line for line in lines if line["kind"] == "step"]
    groups = [steps[i : i + NUM_SMOOTHED] for i in range(0, len(steps), NUM_SMOOTHED)]
    points = (
        Point(group[-1]["tokens"] / 1000, sum(line["loss"] for line in group) / len(group))
        for group in groups
    )
    return [line["loss"] for line in lines if line["kind"] == "validation"], tuple(points)


def _improvement(preset: str, snapshots: list[Snapshot]) -> DataTable:
    title = BLANK if PREDICTIONS[preset] is guess else f"“{PROMPT} …”"
    rows = tuple((f"{one.tokens:,}", one.prediction) for one in snapshots)
    return DataTable(f"{preset}: {title}", ("after tokens", "prediction"), rows, texts=True)
