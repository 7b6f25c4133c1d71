"""ULMFiT (Howard and Ruder 2018): fine-tune the language model on a task's texts, then the task.

    1  a language model of general text                       the model that `finetune` is given
    2  the same model, fine-tuned on the task's texts         here, in OUT/language-model
    3  a classifier on it, unfrozen layer by layer            `finetune`, in OUT

Stage 2 has discriminative learning rates and a slanted triangular schedule (the recipe
`ulmfit-lm`); it reads all texts of the training file, also those that `--limit` leaves out, and no
label. Each stage is a run of its own with its checkpoints, so `--resume` continues either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from firth.data.memory import Data, as_source
from firth.jobs.job_configs import FinetuneConfig
from firth.tasks.readers.columns import TaskFile, good_examples
from firth.tasks.registry import task_named
from firth.training.run_directory import read_metrics, read_run
from firth.utils.errors import InputError, UsageError

PREFIX = "lm."  # of settings of stage 2, such as lm.epochs
HELD_OUT = 10  # without a dev file, every tenth text is held out


def language_model_job(job: FinetuneConfig, recipe: str) -> FinetuneConfig:
    """Return the arguments of stage 2, given those of `finetune`."""
    if job.scratch:
        raise UsageError(
            f"--recipe {job.recipe} fine-tunes a pre-trained language model: remove --scratch, or "
            "remove --recipe for a classifier from random weights."
        )
    texts = _texts(job, job.train, "train")
    if len(texts) < 2:
        raise InputError(f"{job.train} has too few texts to fine-tune a language model on them.")
    held_out = texts[::HELD_OUT]
    if job.dev is not None:
        held_out = _texts(job, job.dev, "dev")
    else:
        texts = [text for i, text in enumerate(texts) if i % HELD_OUT]
    return FinetuneConfig(
        model=job.model,
        task="lm",
        train=texts,
        dev=held_out,
        recipe=recipe,
        seed=job.seed,
        max_length=job.max_length,
        precision=job.precision,
        overrides=_settings(job.overrides, of_stage=True),
        device=job.device,
        resume=job.resume,
    )


def classifier_job(job: FinetuneConfig, language_model: Path) -> FinetuneConfig:
    """Return the arguments of stage 3: the task, from the fine-tuned language model."""
    return replace(
        job,
        model=language_model,
        overrides=_settings(job.overrides, of_stage=False),
        tokenizer=None,
    )


def language_model_values(folder: Path) -> dict[str, Any]:
    """Return what a finished stage 2 did, as JSON values; losses are on the held-out texts."""
    found = [line for line in read_metrics(folder) if line["kind"] == "validation"]
    losses, result = [line["loss"] for line in found], read_run(folder)["results"]
    return {
        "out": str(folder),
        "texts": result["train"],
        "steps": result["steps"],
        "seconds": result["seconds"],
        "loss_before": losses[0],
        "loss": min(losses),  # of the weights that are kept
    }


def _texts(job: FinetuneConfig, data: Data, name: str) -> list[str]:
    """Read the texts of a task's examples."""
    task = task_named(job.task)
    file = TaskFile(
        as_source(data, name, task.columns), format=job.format, columns=job.columns or {}
    )
    return [example.text for example in good_examples(task.read, file)]


def _settings(overrides: Mapping[str, Any] | None, *, of_stage: bool) -> dict[str, Any]:
    """Return the settings of stage 2 without their prefix, or the others.

    >>> _settings({"lm.epochs": 2, "head.layers": 0}, of_stage=True)
    {'epochs': 2}
    """
    return {
        name.removeprefix(PREFIX): value
        for name, value in (overrides or {}).items()
        if name.startswith(PREFIX) == of_stage
    }
