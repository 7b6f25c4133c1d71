"""ULMFiT (Howard and Ruder 2018): fine-tune the language model on a task's texts, then the task.

    1  a language model of general text                given, or a preset that is pre-trained on
                                                       --general-text: OUT/general-language-model
    2  the same model, fine-tuned on the task's texts  OUT/language-model
    3  a classifier on it, unfrozen layer by layer     OUT

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
from firth.embedded import local_path
from firth.jobs.job_configs import FinetuneConfig
from firth.jobs.preparation import prepare
from firth.jobs.pretraining import pretrain
from firth.models.presets import PRESETS
from firth.tasks.readers.columns import TaskFile, good_examples
from firth.tasks.registry import task_named
from firth.tokenizers.trainer import train_tokenizer
from firth.training.distributed.ranks import current_ranks
from firth.training.log import Callback
from firth.training.loop import Callbacks
from firth.training.run_directory import SHARDS, find_run, read_metrics, read_run
from firth.utils.errors import InputError, UsageError

PREFIXES = GENERAL_PREFIX, TEXTS_PREFIX = "general.", "lm."  # of settings of stages 1 and 2
BUDGETS = {"steps": int, "tokens": int, "minutes": float}  # of stage 1
PASSES = 3  # over the general text, without a budget
HELD_OUT = 10  # without a dev file, every tenth text is held out


def check_general_text(job: FinetuneConfig) -> bool:
    """Return whether stage 1 is needed: the model is a preset, and there is general text."""
    named = isinstance(job.model, str) and local_path(job.model) is None and job.model in PRESETS
    if named and job.general_text is None and not job.scratch:
        raise UsageError(
            f"{job.model} is a preset with random weights: add --general-text to pre-train it "
            "first, or give the run of a pre-trained language model."
        )
    if job.general_text is not None and not named:
        raise UsageError(
            f"--general-text is for the name of a preset, such as awd-lstm; {job.model} is "
            "pre-trained already: omit it."
        )
    return named and not job.scratch


def pretrain_general(
    job: FinetuneConfig, folder: Path, callback: Callback, callbacks: Callbacks
) -> None:
    """Stage 1: pre-train a preset on general text, with a tokenizer of the words of that text."""
    assert job.general_text is not None
    if current_ranks().size > 1:
        raise UsageError("--general-text needs one process: pre-train with `firth pretrain` first.")
    settings = _settings(job.overrides, GENERAL_PREFIX)
    budget = {name: _number(name, settings.pop(name)) for name in BUDGETS if name in settings}
    tokenizer = job.tokenizer or train_tokenizer(job.general_text, kind="word")[0]
    prepared = prepare(job.general_text, tokenizer=tokenizer, out=folder / SHARDS)
    pretrain(
        preset=str(job.model),
        data=prepared.path,
        out=folder,
        **(budget or {"tokens": PASSES * prepared.splits["train"]["tokens"]}),
        seed=job.seed,
        precision=job.precision,
        overrides=settings,
        device=job.device,
        resume=job.resume and bool(find_run(folder)),
        callback=callback,
        callbacks=callbacks,
    )


def _number(name: str, value: Any) -> Any:
    """Return a budget as a number.

    >>> _number("tokens", "1e6")
    1000000
    """
    try:
        return BUDGETS[name](float(value))
    except (ValueError, OverflowError) as error:
        setting = GENERAL_PREFIX + name
        raise UsageError(f"{setting} is a number such as 1000, not {value!r}.") from error


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
        overrides=_settings(job.overrides, TEXTS_PREFIX),
        device=job.device,
        resume=job.resume,
    )


def classifier_job(job: FinetuneConfig, language_model: Path) -> FinetuneConfig:
    """Return the arguments of stage 3: the task, from the fine-tuned language model."""
    return replace(
        job,
        model=language_model,
        overrides=_settings(job.overrides, ""),
        tokenizer=None,
        general_text=None,
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


def _settings(overrides: Mapping[str, Any] | None, prefix: str) -> dict[str, Any]:
    """Return the settings of stage 1 or 2 without their prefix, or those of stage 3 ("").

    >>> given = {"lm.epochs": 2, "head.layers": 0}
    >>> _settings(given, TEXTS_PREFIX), _settings(given, "")
    ({'epochs': 2}, {'head.layers': 0})
    """
    return {
        name.removeprefix(prefix): value
        for name, value in (overrides or {}).items()
        if next((own for own in PREFIXES if name.startswith(own)), "") == prefix
    }
