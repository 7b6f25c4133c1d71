"""What a pre-training run is to do, decided before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from firth.errors import MismatchError, Misuse
from firth.models.config import ModelConfig
from firth.models.formats.directory import NATIVE
from firth.models.presets import PRESETS, Preset, preset
from firth.models.presets.trio import TRIO
from firth.objectives.table import OBJECTIVES, Objective
from firth.text.tokenizer import Tokenizer
from firth.training.losses import TAUGHT, heads_for
from firth.training.machine import suited
from firth.training.recipes import RECIPES, settings_for
from firth.training.schedule import Stages
from firth.training.settings import Settings, any_value, grouped, typed, unknown

USUAL = {"encoder": "masked", "decoder": "causal", "encoder-decoder": "span-corruption"}
# Families without a preset of their own: the one whose recipe is nearest.
KIN = {
    "xlm-roberta": "roberta-base",
    **dict.fromkeys(("mpnet", "xlm", "rembert"), "bert-base"),
    "modernbert-decoder": "modernbert-base",
    **dict.fromkeys(("qwen2", "qwen3", "gemma3_text"), "llama-7b"),
    "mt5": "t5-base",
    "mbart": "bart-base",
}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A model to go on from, as far as it decides a run."""

    path: Path
    config: ModelConfig
    preset: str | None = None  # that its own run names
    objective: str | None = None  # that it learned from, where its own run says so


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides a run; with the same data, the same job gives the same bits."""

    preset: str  # or, without one, what the model it goes on from says: its preset or family
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
    name: str | None,
    objective: str | None,
    tokenizer: Tokenizer,
    budget: Mapping[str, Any],
    seed: int,
    changes: Mapping[str, Any],
    source: Origin | None,
    teacher: str | Path | None,
    device: str,
) -> Job:
    """All decisions, before anything is built: the preset's, then what was asked for.

    Without a preset, they are those of the model it goes on from.
    """
    chosen = _chosen(name, source)
    asked = objective or ("masked" if teacher else chosen.objective)
    row = _objective(asked, chosen)
    groups = grouped(changes, ("model", "objective"))
    if source is not None:
        wanted = None if name is None else _config(chosen, row, tokenizer, groups["model"])
        config = _of_source(source, wanted, row, tokenizer, groups["model"])
    else:
        config = _config(chosen, row, tokenizer, groups["model"])
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
        preset=chosen.name,
        objective=asked,
        config=config,
        settings=settings,
        options=options,
        weights=TAUGHT if teacher is not None else row.weights,
        source=str(source.path.resolve()) if source else None,
        teacher=str(Path(teacher).resolve()) if teacher else None,
    )


def relative(name: str, config: ModelConfig) -> Preset:
    """The preset of this name or, where there is none, the nearest: of the family, or the trio's.

    >>> from firth.models.presets import preset
    >>> gpt = preset("gpt2-medium").config
    >>> [relative(name, gpt).recipe for name in ("bert-tiny", "gpt2", "of my own")]
    ['bert', 'gpt2', 'gpt2']
    >>> relative("of my own", preset("seq2seq-base").config).recipe
    'trio'
    """
    if name in PRESETS:
        return PRESETS[name]
    if config.family in KIN:
        return PRESETS[KIN[config.family]]
    kin = [row for row in PRESETS.values() if config.family and row.config.family == config.family]
    trio = (row for row in TRIO.values() if row.config.architecture == config.architecture)
    return kin[0] if kin else next(trio)


def _chosen(name: str | None, source: Origin | None) -> Preset:
    """The preset of a name; without one, the model to go on from as if it were a preset."""
    if name is not None:
        return preset(name)
    if source is None:
        raise Misuse(
            "Missing option '--preset': name a network (`firth presets` lists them), or with "
            "--from a model to go on from."
        )
    name = source.preset or source.config.family or NATIVE
    like = relative(name, source.config)
    return replace(like, name=name, config=source.config, objective=_usual(source, like))


def _usual(source: Origin, like: Preset) -> str:
    """What a model goes on with: what it learned from before; else what a language head suffices
    for, as its family does it or, if that needs more, as its architecture does.
    """
    architecture = source.config.architecture
    able = {name for name, row in OBJECTIVES.items() if architecture in row.architectures}
    if source.objective in able:
        return str(source.objective)
    if like.objective in able and heads_for(OBJECTIVES[like.objective].predicts) == ("language",):
        return like.objective
    return USUAL[architecture]


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
LABELS = (
    *("label_head", "labels", "labelling"),
    *("label_layers", "label_activation", "label_norm", "label_bias"),
)
USUAL_LABELS = {field.name: field.default for field in fields(ModelConfig) if field.name in LABELS}


def _of_source(
    source: Origin,
    wanted: ModelConfig | None,
    row: Objective,
    tokenizer: Tokenizer,
    changes: Mapping[str, Any],
) -> ModelConfig:
    """The configuration of a model to go on from, which a preset, if one is named, must describe.

    Labels that it was taught are left behind.
    """
    path, found, own = source.path, source.config, _own(changes)
    if found.reader is not None:
        raise MismatchError(
            f"{path} reads and writes with two vocabularies, but text to pre-train on has one; "
            "`firth finetune` teaches it more."
        )
    for name in SHAPE:
        before = getattr(found, name)
        if wanted is not None and before != (now := getattr(wanted, name)):
            raise MismatchError(
                f"{path} has {name} {before}, this preset {now}; "
                "name the preset it was made from, with the same --set model.… changes."
            )
        if wanted is None and before != (now := own.get(name, before)):
            raise MismatchError(
                f"{path} has {name} {before}, which --set model.{name}={now} cannot change: a "
                "model that goes on keeps its shape."
            )
    kept = {name: value for name, value in own.items() if name not in SHAPE}
    start = tokenizer.vocabulary.id(*row.start) if row.start else None
    return replace(found, **{**USUAL_LABELS, **kept, "start_id": start})


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
