"""What a pre-training run is to do, decided before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from firth.errors import MismatchError, Misuse
from firth.models.config import ModelConfig
from firth.models.formats.directory import read_config
from firth.models.presets import Preset, preset
from firth.objectives.table import OBJECTIVES, Objective
from firth.text.tokenizer import Tokenizer
from firth.training.machine import suited
from firth.training.recipes import RECIPES, settings_for
from firth.training.schedule import Stages
from firth.training.settings import Settings, any_value, grouped, typed, unknown


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides a run; with the same data, the same job gives the same bits."""

    preset: str
    objective: str
    config: ModelConfig
    settings: Settings
    options: dict[str, Any]  # of the objective
    weights: dict[str, float]  # of the losses
    source: str | None = None  # the model it goes on from
    teacher: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON knows it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"config": self.config.to_dict(), "settings": self.settings.to_dict()}


def plan_job(
    name: str,
    objective: str | None,
    tokenizer: Tokenizer,
    budget: Mapping[str, Any],
    seed: int,
    changes: Mapping[str, Any],
    source: str | Path | None,
    teacher: str | Path | None,
    device: str,
) -> Job:
    """All decisions, before anything is built: the preset's, then what was asked for."""
    chosen = preset(name)
    asked = objective or ("masked" if teacher else chosen.objective)
    row = _objective(asked, chosen)
    groups = grouped(changes, ("model", "objective"))
    config = _config(chosen, row, tokenizer, groups["model"])
    if source is not None:
        config = _of_source(Path(source), config, groups["model"])
    if teacher is not None and row.predicts != ("masked",):
        raise Misuse(f"A teacher helps with masked tokens alone, not with {asked!r}.")
    recipe = RECIPES[chosen.recipe]
    settings = settings_for(chosen.recipe, config, device=device, seed=seed, **budget)
    settings = suited(settings.changed(groups["settings"]), device)
    if Stages.parse(settings.length).largest > config.context:
        raise Misuse(
            f"A length of {Stages.parse(settings.length).largest} is beyond the model's context "
            f"of {config.context}; set a smaller length, or model.context."
        )
    options = recipe.options.get(asked, {}) | {
        k: any_value(v) for k, v in groups["objective"].items()
    }
    return Job(
        preset=name,
        objective=asked,
        config=config,
        settings=settings,
        options=options,
        weights=recipe.weights,
        source=str(Path(source).resolve()) if source else None,
        teacher=str(Path(teacher).resolve()) if teacher else None,
    )


def _objective(name: str, chosen: Preset) -> Objective:
    if name not in OBJECTIVES:
        raise Misuse(f"There is no objective {name!r}; there are {', '.join(OBJECTIVES)}.")
    row, architecture = OBJECTIVES[name], chosen.config.architecture
    if architecture not in row.architectures:
        fitting = [key for key, o in OBJECTIVES.items() if architecture in o.architectures]
        raise Misuse(
            f"{chosen.name} is {_a(architecture)}, which cannot learn from {name!r}; it can from "
            f"{', '.join(fitting)}."
        )
    return row


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _own(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a network from text."""
    kinds = {field.name: str(field.type) for field in fields(ModelConfig)}
    del kinds["reader"]  # whole networks are joined when they are fine-tuned
    for name in changes:
        if name not in kinds:
            raise unknown(f"model.{name}", [f"model.{kind}" for kind in kinds])
    return {name: typed(f"model.{name}", value, kinds[name]) for name, value in changes.items()}


def _config(
    chosen: Preset, row: Objective, tokenizer: Tokenizer, changes: Mapping[str, Any]
) -> ModelConfig:
    """The preset's shape with this tokenizer's vocabulary."""
    config = chosen.config
    vocabulary, ids = tokenizer.vocabulary, tokenizer.special_ids
    roles = {
        "padding_id": ids.get("pad"),
        "begin_id": ids.get("bos", ids.get("cls")),
        "end_id": ids.get("eos", ids.get("sep")),
        "start_id": vocabulary.id(*row.start) if row.start else None,
    }
    if config.position_offset and config.architecture == "encoder":
        roles["position_offset"] = (ids.get("pad") or 0) + 1  # RoBERTa counts from behind it
    again = _rederived(config, changes)
    return replace(config, vocabulary=len(tokenizer), **{**roles, **again, **_own(changes)})


SHAPE = ("architecture", "layers", "decoder_layers", "width", "heads", "inner", "norm_place")


def _of_source(path: Path, asked: ModelConfig, changes: Mapping[str, Any]) -> ModelConfig:
    """The configuration of a model to go on from, which the preset must describe."""
    found, _ = read_config(path)
    if found.reader is not None:
        raise MismatchError(
            f"{path} reads and writes with two vocabularies, but text to pre-train on has one; "
            "`firth finetune` teaches it more."
        )
    for name in SHAPE:
        if getattr(found, name) != getattr(asked, name):
            raise MismatchError(
                f"{path} has {name} {getattr(found, name)}, this preset {getattr(asked, name)}; "
                "name the preset it was made from, with the same --set model.… changes."
            )
    kept = {name: value for name, value in _own(changes).items() if name not in SHAPE}
    return replace(found, **{**kept, "start_id": asked.start_id})


def _rederived(config: ModelConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that follow from others and were not set themselves, to be worked out again."""
    again: dict[str, Any] = {}
    usual_heads = config.head_width * config.heads == config.block_width
    if usual_heads and {"width", "heads", "bottleneck"} & set(changes):
        again["head_width"] = 0
    if config.kv_heads == config.heads and "heads" in changes:
        again["kv_heads"] = 0
    if config.decoder_layers == config.layers and "layers" in changes:
        again["decoder_layers"] = 0
    if "layers" in changes:
        layers = typed("model.layers", changes["layers"], "int")
        again["windowed"] = tuple(layer for layer in config.windowed if layer < layers)
    return again
