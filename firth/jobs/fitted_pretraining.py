"""Pre-training without the training loop: n-gram models are counted, word vectors have own kernels.

`pretrain` calls `pretrain_fitted` for presets whose objective is in the table `FITTED`. The run
directory is that of every run; fitting is atomic: an interrupted run starts again with `--resume`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firth.data.shards import Shards
from firth.inference.generation.special_tokens import as_list
from firth.inference.scoring.token_scoring import ScoringRequest, score_requests
from firth.jobs.pretrain_result import PretrainResult
from firth.model import Model
from firth.models.language_model import LanguageNetwork, predicts_tokens
from firth.models.ngram.config import NgramConfig
from firth.models.presets import PRESETS, Preset
from firth.tokenizers.special_tokens import with_special_tokens
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.config import TrainingConfig, group_overrides
from firth.training.fitted_objectives import FITTED
from firth.training.fitting import FitInputs, FittedRunConfig
from firth.training.log import Callback, Metrics
from firth.training.pretrain_config import preset_config
from firth.training.run import Run, describe_run, open_run
from firth.training.run_directory import METRICS
from firth.utils.config_fields import flag
from firth.utils.errors import UsageError, storage_errors
from firth.utils.plotting import plot_loss

VALIDATE_TOKENS = 1 << 18  # at most, of the validation split
SCRATCH = "fitting.partial"  # folder of temporary files in the run directory


def fitted_preset(name: str | None, objective: str | None, given: Mapping[str, Any]) -> str | None:
    """Return the name of a preset that is fitted; None for all others.

    `given` are the arguments of `pretrain` that such a model does not have: each must be unset.
    """
    chosen = PRESETS.get(name or "")
    if chosen is None or chosen.objective not in FITTED:
        if objective in FITTED:
            fitting = [row.name for row in PRESETS.values() if row.objective == objective]
            raise UsageError(
                f"--objective {objective} is for the presets {', '.join(fitting)}, not {name}."
            )
        return None
    if objective not in (None, chosen.objective):
        raise UsageError(f"{name} has the objective {chosen.objective!r}, not {objective!r}.")
    for option, value in given.items():
        if value:
            raise UsageError(
                f"{flag(option)} does not apply to {name}, which is fitted without optimizer "
                f"steps; {_own_options(chosen)}."
            )
    return name


def _own_options(chosen: Preset) -> str:
    names = [f"--set {name}={value}" for name, value in FITTED[chosen.objective].options.items()]
    return f"its options are {', '.join(names)}" if names else "it has no options of its own"


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """The arguments of `pretrain` that a fitted model has."""

    config: FittedRunConfig
    shards: Shards
    tokenizer: Tokenizer
    out: Path
    resume: bool
    callback: Callback
    notes: list[str]


def resolve_fitted_config(
    name: str, tokenizer: Tokenizer, overrides: Mapping[str, Any]
) -> FittedRunConfig:
    """Resolve the config; fields of `--set` without a prefix are options of the objective."""
    chosen = PRESETS[name]
    groups = group_overrides(overrides, ("model", "objective"))
    training = TrainingConfig().with_overrides({"seed": groups["training"].pop("seed", 0)})
    options = FITTED[chosen.objective].parse_options(groups["training"] | groups["objective"])
    return FittedRunConfig(
        preset=chosen.name,
        objective=chosen.objective,
        model=preset_config(chosen, tokenizer, groups["model"]),
        objective_options=options,
        seed=training.seed,
    )


def pretrain_fitted(request: FitRequest) -> PretrainResult:
    """Fit the model of a preset, validate it, and save the run."""
    config, shards = request.config, request.shards
    description = describe_run("pretraining", config.to_dict(), {"shards": shards.path}, {})
    with open_run(
        request.out,
        TrainingConfig(seed=config.seed),
        description,
        resume=request.resume,
        callback=request.callback,
        speed=lambda tokens, seconds: {},
    ) as run:
        (run.path / METRICS).unlink(missing_ok=True)  # of an interrupted run, which starts again
        for note in request.notes:
            run.log.note(note)
        started = time.monotonic()
        with _scratch(run.path) as scratch:
            network = FITTED[config.objective].fit(_inputs(request, config, run, scratch))
        seconds = time.monotonic() - started
        tokenizer = request.tokenizer
        if isinstance(config.model, NgramConfig):
            tokenizer = with_special_tokens(tokenizer, as_list(config.model.bos_token_id), [])
        model = Model(network.eval(), tokenizer, run.path, objective=config.objective)
        return _finish(config, model, run, shards, seconds)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Make an empty folder for temporary files, and remove it at the end."""
    folder = path / SCRATCH
    shutil.rmtree(folder, ignore_errors=True)  # of a killed run
    try:
        with storage_errors(folder):
            folder.mkdir()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _inputs(request: FitRequest, config: FittedRunConfig, run: Run, scratch: Path) -> FitInputs:
    def progress(what: str, done: int, total: int) -> None:
        request.callback("progress", {"what": what, "done": done, "total": total})

    return FitInputs(
        shards=request.shards,
        tokenizer=request.tokenizer,
        config=config.model,
        options=config.objective_options,
        seed=config.seed,
        scratch=scratch,
        progress=progress,
        log=run.log.fitted,
        note=run.log.note,
    )


def _finish(
    config: FittedRunConfig, model: Model, run: Run, shards: Shards, seconds: float
) -> PretrainResult:
    """Validate and save the model, its loss curve if there is one, and the model card."""
    steps = [line for line in run.metrics() if line["kind"] == "step"]
    tokens = steps[-1]["tokens"] if steps else shards.tokens
    run.log.callback("validating", {})
    if metrics := _validate(model.network, shards):
        run.log.fitted({"tokens": tokens, **metrics, "progress": 1.0}, "validation")
    family, lines = model.write(run.path), run.metrics()
    if steps:
        plot_loss(run.path / "loss.png", {config.preset: lines})
    result = PretrainResult(
        path=run.path,
        model=model,
        config=config,
        steps=0,
        tokens=tokens,
        seconds=seconds,
        loss=metrics.get("loss"),
        family=family,
        source_losses={},
        notes=[line["note"] for line in lines if line["kind"] == "note"],
    )
    run.finish(result.values() | {"validation": metrics})
    return result


def _validate(network: LanguageNetwork, shards: Shards) -> Metrics:
    """Compute loss and perplexity on the validation split, if the network predicts tokens."""
    if "valid" not in shards.index["splits"] or not predicts_tokens(network):
        return {}
    requests = _requests(network, Shards(shards.path, "valid"))
    scores = [score.log_probs for score in score_requests(network, requests)]
    if not scores:
        return {}
    loss = -float(np.concatenate(scores).mean())
    return {"loss": loss, "perplexity": float(np.exp(loss))}


def _requests(network: LanguageNetwork, valid: Shards) -> Iterator[ScoringRequest]:
    """Yield the documents, from the beginning-of-text token to the end-of-text token."""
    config, seen = network.config, 0
    for document in range(len(valid)):
        tokens = [
            *as_list(config.bos_token_id),
            *valid[document].tolist(),
            *as_list(config.eos_token_id),
        ][: config.max_positions + 1]
        yield ScoringRequest(tuple(tokens[:-1]), range(len(tokens) - 1), tokens[1:])
        if (seen := seen + len(tokens)) >= VALIDATE_TOKENS:
            return
