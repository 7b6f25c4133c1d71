"""Chapter: pre-train a small model and watch it improve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.demo.workspace import (
    BY_HAND,
    RUN_FILE,
    Findings,
    Workspace,
    command,
    remove_previous,
)
from firth.demo.workspace import step_callback as steps_as_progress
from firth.jobs.parent_models import untrained_model
from firth.jobs.pretraining import pretrain
from firth.model import Model, load
from firth.training.log import Metrics
from firth.training.loop import Callbacks
from firth.training.run_directory import read_metrics
from firth.utils.figures import DataTable, Figure, KeyNumber, KeyNumbers, LineChart, Point

PRESET = "decoder-tiny"
PROMPTS = ("Once upon a time", "The dog")
NUM_NEW_TOKENS = 20
STEP_TOKENS = 1024  # a small batch: many steps for few tokens
NUM_SMOOTHED = 5  # steps averaged to a point of the curve


@dataclass(frozen=True)
class Snapshot:
    """How a model continued the prompts after a number of training tokens."""

    tokens: int
    continuations: list[str]


def live_pretraining(workspace: Workspace) -> Findings:
    """Pre-train a decoder; show its loss, and continuations that improve."""
    options = {
        "data": workspace.shards,
        "tokens": workspace.budget.pretraining_tokens,
        "batch_tokens": STEP_TOKENS,
        "overrides": {"validate_every": 0.5},
    }
    run, snapshots = _train(workspace, options)
    validated, curve = _losses(run)
    chance = math.log(len(workspace.tokenizer))
    facts = (
        KeyNumber(f"{chance:.2f}", "loss of a model that knows nothing: every token as likely"),
        KeyNumber(f"{validated[-1]:.2f}", "loss on unseen stories after training"),
        KeyNumber(f"{snapshots[-1].tokens:,}", "tokens read; large models read trillions"),
    )
    chart = LineChart(
        "The loss falls",
        "thousand tokens read",
        "training loss",
        {PRESET: curve},
        caption="The loss is the surprise at the right token, on average: lower is better.",
    )
    figures: list[Figure] = [KeyNumbers(facts), chart, *_improvements(snapshots)]
    values = {
        "tokens": workspace.budget.pretraining_tokens,
        "chance": chance,
        "losses": validated,
        "snapshots": [vars(one) for one in snapshots],
    }
    seed = {"seed": workspace.seed} if workspace.seed else {}
    commands = [
        *workspace.prepare_commands[1:],
        command("pretrain", preset=PRESET, **options, out=BY_HAND / PRESET, **seed),
        command("generate", workspace.out / PRESET, PROMPTS[0], max_new_tokens=NUM_NEW_TOKENS),
    ]
    return Findings(figures, values, commands)


def continuations(model: Model) -> list[str]:
    """Continue each prompt with the most probable tokens."""
    return [
        f"{prompt} {model.generate(prompt, max_new_tokens=NUM_NEW_TOKENS).strip()} …"
        for prompt in PROMPTS
    ]


def _train(workspace: Workspace, options: dict[str, Any]) -> tuple[Path, list[Snapshot]]:
    """Pre-train a model; return its run and its continuations before, half-way and after."""
    out, seed = workspace.out / PRESET, workspace.seed
    before = untrained_model(PRESET, workspace.tokenizer, scratch=True, seed=seed)
    snapshots = [Snapshot(0, continuations(before))]
    show = steps_as_progress(f"pre-training {PRESET}", workspace.progress)
    half = options["tokens"] / 2
    read = 0

    def callback(kind: str, metrics: Metrics) -> None:
        nonlocal read
        read = metrics.get("tokens", read)
        show(kind, metrics)

    def halfway() -> None:  # the model has just been saved as the best so far
        if len(snapshots) == 1 and read >= 0.95 * half:
            snapshots.append(Snapshot(read, continuations(load(out / "best"))))

    remove_previous(out, RUN_FILE)
    run = pretrain(
        preset=PRESET,
        **options,
        out=out,
        seed=seed,
        callback=callback,
        callbacks=Callbacks(on_improvement=halfway),
    )
    return run.path, [*snapshots[:2], Snapshot(run.tokens, continuations(run.model))]


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


def _improvements(snapshots: list[Snapshot]) -> list[DataTable]:
    """Show for each prompt how its continuation changes."""
    columns = ("after tokens", "the model continues")
    return [
        DataTable(
            f"“{prompt} …”",
            columns,
            tuple((f"{one.tokens:,}", one.continuations[number]) for one in snapshots),
            texts=True,
        )
        for number, prompt in enumerate(PROMPTS)
    ]
