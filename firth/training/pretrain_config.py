"""The configuration of a pre-training run, resolved from a preset and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

from firth.formats.huggingface.directory import NATIVE
from firth.models.config import ModelConfig
from firth.models.flops import training_flops
from firth.models.generator import generator_config
from firth.models.presets import PRESETS, Preset, preset
from firth.models.presets.trio import TRIO
from firth.models.transformer_config import TransformerConfig
from firth.objectives.registry import OBJECTIVES, Objective
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.config import (
    TrainingConfig,
    group_overrides,
    parse_any,
    parse_value,
    unknown_setting,
)
from firth.training.fitted_objectives import FITTED
from firth.training.losses import DISTILLATION_WEIGHTS, heads_for
from firth.training.recipes import RECIPES, scale_recipe
from firth.training.runtime import resolve_auto_settings
from firth.training.schedule import ScheduledNumber, StagedValue
from firth.utils.devices import DeviceSpec
from firth.utils.errors import MismatchError, UsageError

DEFAULT_OBJECTIVES = {
    "encoder": "masked",
    "decoder": "causal",
    "encoder-decoder": "span-corruption",
}
# Families without a preset of their own: the preset with the most similar recipe.
SIMILAR_PRESETS = {
    "xlm-roberta": "roberta-base",
    **dict.fromkeys(("mpnet", "xlm", "rembert"), "bert-base"),
    "modernbert-decoder": "modernbert-base",
    **dict.fromkeys(("qwen2", "qwen3", "gemma3_text"), "llama-7b"),
    "mt5": "t5-base",
    "mbart": "bart-base",
}


@dataclass(frozen=True, kw_only=True)
class ParentModel:
    """The model whose pre-training is continued."""

    path: Path
    config: ModelConfig
    preset: str | None = None  # of its own run
    objective: str | None = None  # of its own run, if known


@dataclass(frozen=True, kw_only=True)
class PretrainRunConfig:
    """The complete configuration of a run: with the same data, it gives identical weights."""

    preset: str  # or the preset or family of the source model
    objective: str
    model: ModelConfig
    training: TrainingConfig
    objective_options: dict[str, Any]
    loss_weights: dict[str, float]
    source: str | None = None  # path of the model whose pre-training is continued
    teacher: str | None = None
    mixture: dict[str, float] | None = None  # fraction of the training tokens of each source

    def to_dict(self) -> dict[str, Any]:
        """Return the config as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"model": self.model.to_dict(), "training": self.training.to_dict()}

    def options_at(self, progress: float) -> dict[str, Any]:
        """Return the objective's options at this progress; numbers may change during the run."""
        return {name: _evaluate(value, progress) for name, value in self.objective_options.items()}

    def flops_per_token(self, progress: float = 0.0) -> float:
        """Return the training FLOPs per token at this progress; 0 for other networks."""
        if not isinstance(self.model, TransformerConfig):
            return 0.0
        row = OBJECTIVES[self.objective]
        length = StagedValue.parse(self.training.max_length).at(progress)
        fraction = row.predicted_fraction(**self.options_at(progress))
        if "replaced" not in row.predicts:
            return training_flops(self.model, 1, length, fraction)
        generator = training_flops(generator_config(self.model), 1, length, fraction)
        return generator + training_flops(self.model, 1, length, 0.0)  # no vocabulary head


def _evaluate(value: Any, progress: float) -> Any:
    scheduled = ScheduledNumber.parse(value) if isinstance(value, str) else None
    return value if scheduled is None else scheduled.at(progress)


def resolve_pretrain_config(
    name: str | None,
    objective: str | None,
    tokenizer: Tokenizer,
    budget: Mapping[str, Any],
    overrides: Mapping[str, Any],
    source: ParentModel | None,
    teacher: str | Path | None,
    device: DeviceSpec,
) -> PretrainRunConfig:
    """Resolve the config from a preset, or else from the source model, and overrides."""
    chosen = _chosen(name, source)
    objective = objective or ("masked" if teacher else chosen.objective)
    row = _objective(objective, chosen)
    groups = group_overrides(overrides, ("model", "objective"))
    if not isinstance(chosen.config, TransformerConfig):
        move_own_settings(groups, chosen.config)
    if source is not None:
        wanted = None if name is None else _config(chosen, row, tokenizer, groups["model"])
        config = _source_config(source, wanted, row, tokenizer, groups["model"])
    else:
        config = _config(chosen, row, tokenizer, groups["model"])
    config = replace(config, prefix_lm=row.prefix_lm)
    if teacher is not None and row.predicts != ("masked",):
        raise UsageError(f"A teacher needs the objective 'masked', not {objective!r}.")
    recipe = RECIPES[chosen.recipe]
    settings = scale_recipe(chosen.recipe, config, device=device.type, **budget)
    others = [f"model.{field.name}" for field in fields(config)]
    others += [f"objective.{option}" for option in signature(row.predicted_fraction).parameters]
    settings = settings.with_overrides(groups["training"], others)
    longest = StagedValue.parse(settings.max_length).largest
    if longest > config.max_positions:
        raise UsageError(
            f"max_length {longest} exceeds the model's {config.max_positions} positions; choose a "
            "smaller max_length, or set model.max_positions."
        )
    options = recipe.objective_options.get(objective, {}) | {
        k: parse_any(v) for k, v in groups["objective"].items()
    }
    _check_mask_prob(options.get("mask_prob", 1))
    run = PretrainRunConfig(
        preset=chosen.name,
        objective=objective,
        model=config,
        training=settings,
        objective_options=options,
        loss_weights=DISTILLATION_WEIGHTS if teacher is not None else row.loss_weights,
        source=str(source.path.resolve()) if source else None,
        teacher=str(Path(teacher).resolve()) if teacher else None,
    )
    flops = run.flops_per_token() * settings.expected_tokens
    return replace(run, training=resolve_auto_settings(settings, flops, device))


def _check_mask_prob(value: Any) -> None:
    """Raise an error unless each value of `mask_prob`, also of a schedule, is above 0 and up to 1.

    >>> _check_mask_prob("0.3-1.5")
    Traceback (most recent call last):
    firth.utils.errors.UsageError: mask_prob must be above 0 and at most 1, not 0.3-1.5.
    """
    scheduled = ScheduledNumber.parse(str(value))
    if scheduled is None:
        raise UsageError(
            f"mask_prob is a number, 0.3-0.1 for a linear change, or 0.3:0.9,0.1 for stages, "
            f"not {value}."
        )
    if not all(0 < number <= 1 for number in scheduled.numbers):
        raise UsageError(f"mask_prob must be above 0 and at most 1, not {value}.")


def nearest_preset(name: str, config: ModelConfig) -> Preset:
    """Return the preset of this name, or else the nearest: of the family, or of the trio.

    >>> from firth.models.presets import preset
    >>> gpt = preset("gpt2-medium").config
    >>> [nearest_preset(name, gpt).recipe for name in ("bert-tiny", "gpt2", "my-model")]
    ['bert', 'gpt2', 'gpt2']
    >>> nearest_preset("my-model", preset("seq2seq-base").config).recipe
    'trio'
    """
    if name in PRESETS:
        return PRESETS[name]
    if config.family in SIMILAR_PRESETS:
        return PRESETS[SIMILAR_PRESETS[config.family]]
    family = [
        row for row in PRESETS.values() if config.family and row.config.family == config.family
    ]
    trio = (row for row in TRIO.values() if row.config.architecture == config.architecture)
    return family[0] if family else next(trio)


def _chosen(name: str | None, source: ParentModel | None) -> Preset:
    """Return the named preset, or else the source model as if it were a preset."""
    if name is not None:
        return preset(name)
    if source is None:
        raise UsageError(
            "Give an architecture with --preset (`firth presets` lists them), or with --from "
            "a model whose pre-training to continue."
        )
    name = source.preset or source.config.family or NATIVE
    like = nearest_preset(name, source.config)
    return replace(
        like, name=name, config=source.config, objective=_default_objective(source, like)
    )


def _default_objective(source: ParentModel, like: Preset) -> str:
    """Return the objective of the model's own run; else its family's, if it needs only a language
    head; else the default of its architecture.
    """
    architecture = source.config.architecture
    suitable = {name for name, row in OBJECTIVES.items() if architecture in row.architectures}
    if source.objective in suitable:
        return str(source.objective)
    if like.objective in suitable and heads_for(OBJECTIVES[like.objective].predicts) == (
        "language",
    ):
        return like.objective
    return DEFAULT_OBJECTIVES[architecture]


def _objective(name: str, chosen: Preset) -> Objective:
    if name not in OBJECTIVES:
        raise UsageError(f"Unknown objective {name!r}; choose one of {', '.join(OBJECTIVES)}.")
    row, architecture = OBJECTIVES[name], chosen.config.architecture
    if architecture not in row.architectures:
        fitting = [key for key, o in OBJECTIVES.items() if architecture in o.architectures]
        raise UsageError(
            f"{chosen.name} is {_with_article(architecture)} and cannot be trained with {name!r}; "
            f"choose one of {', '.join(fitting)}."
        )
    if "backward" in row.predicts and not chosen.config.predicts_backward:
        raise UsageError(
            f"{chosen.name} has no backward language model, which {name!r} trains: choose the "
            "preset elmo, or the objective causal."
        )
    return row


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def model_overrides(config: ModelConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Convert overrides of model fields to their types."""
    kinds = {field.name: str(field.type) for field in fields(config)}
    for other in ("encoder", "features"):  # fine-tuning adds a second network
        kinds.pop(other, None)
    for name in overrides:
        if name not in kinds:
            raise unknown_setting(f"model.{name}", [f"model.{kind}" for kind in kinds])
    return {
        name: parse_value(f"model.{name}", value, kinds[name]) for name, value in overrides.items()
    }


def move_own_settings(groups: Mapping[str, dict[str, Any]], config: ModelConfig) -> None:
    """Move settings that only this kind of network has from those of training to its own.

    They need no prefix:

    >>> from firth.models.presets import preset
    >>> groups = {"model": {}, "training": {"attention": "luong", "steps": 3}}
    >>> move_own_settings(groups, preset("rnn-seq2seq").config)
    >>> groups
    {'model': {'attention': 'luong'}, 'training': {'steps': 3}}
    """
    shared = {field.name for field in fields(ModelConfig)}
    for name in {field.name for field in fields(config)} - shared:
        if name in groups["training"]:
            groups["model"][name] = groups["training"].pop(name)


def preset_config(
    chosen: Preset, tokenizer: Tokenizer, overrides: Mapping[str, Any] | None = None
) -> ModelConfig:
    """Return the model config of a preset with this tokenizer's vocabulary, and overrides."""
    objective = chosen.objective
    if objective in FITTED:  # only the roles of the special tokens matter here
        objective = DEFAULT_OBJECTIVES[chosen.config.architecture]
    return _config(chosen, _objective(objective, chosen), tokenizer, overrides or {})


def _config(
    chosen: Preset, row: Objective, tokenizer: Tokenizer, overrides: Mapping[str, Any]
) -> ModelConfig:
    """Return the preset's model config with this tokenizer's vocabulary and overrides."""
    if "vocab_size" in overrides:
        raise UsageError("The vocabulary is the tokenizer's: omit model.vocab_size.")
    config = chosen.config
    vocabulary, ids = tokenizer.vocabulary, tokenizer.special_ids
    roles: dict[str, Any] = {
        "pad_token_id": ids.get("pad"),
        "bos_token_id": ids.get("bos", ids.get("cls")),
        "eos_token_id": ids.get("eos", ids.get("sep")),
        "decoder_start_token_id": vocabulary.id(*row.start_token_roles)
        if row.start_token_roles
        else None,
    }
    offset = isinstance(config, TransformerConfig) and config.position_offset
    if offset and config.architecture == "encoder":
        roles["position_offset"] = (ids.get("pad") or 0) + 1  # RoBERTa's positions start after it
    roles |= _reset_derived(config, overrides) | model_overrides(config, overrides)
    return replace(config, vocab_size=len(tokenizer), **roles)


SHAPE = (
    "architecture",
    "num_layers",
    "num_decoder_layers",
    "hidden_size",
    "num_heads",
    "ffn_size",
    "norm_position",
    "share_encoder_decoder",
)
LABELS = (
    *("label_head", "labels", "label_type"),
    *("label_layers", "label_activation", "label_norm", "label_bias"),
    *("label_input_layer", "label_layer_mix"),
)
DEFAULT_LABELS = {
    field.name: field.default for field in fields(ModelConfig) if field.name in LABELS
}


def _source_config(
    source: ParentModel,
    wanted: ModelConfig | None,
    row: Objective,
    tokenizer: Tokenizer,
    overrides: Mapping[str, Any],
) -> ModelConfig:
    """Return the source model's config, which must match the preset, without its task labels."""
    path, found, own = source.path, source.config, model_overrides(source.config, overrides)
    if found.encoder is not None:
        raise MismatchError(
            f"{path} has separate encoder and decoder vocabularies and cannot be pre-trained; use "
            "`firth finetune`."
        )
    if wanted is not None and type(wanted) is not type(found):
        raise MismatchError(f"{path} is another kind of network than this preset.")
    for name in (name for name in SHAPE if hasattr(found, name)):
        before = getattr(found, name)
        if wanted is not None and before != (now := getattr(wanted, name)):
            raise MismatchError(
                f"{path} has {name} {before}, but this preset has {now}; give the preset of its "
                "own run, with the same --set model.… overrides."
            )
        if wanted is None and before != (now := own.get(name, before)):
            raise MismatchError(
                f"{path} has {name} {before}, which --set model.{name}={now} cannot change in "
                "continued pre-training."
            )
    kept = {name: value for name, value in own.items() if name not in SHAPE}
    start = tokenizer.vocabulary.id(*row.start_token_roles) if row.start_token_roles else None
    return replace(found, **{**DEFAULT_LABELS, **kept, "decoder_start_token_id": start})


def _reset_derived(config: ModelConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Reset fields that are derived from overridden ones, so that they are derived again."""
    derived: dict[str, Any] = dict.fromkeys(config.derived, 0)
    if not isinstance(config, TransformerConfig):
        return derived
    default_heads = config.head_dim * config.num_heads == config.block_size
    if default_heads and {"hidden_size", "num_heads", "bottleneck_size"} & set(overrides):
        derived["head_dim"] = 0
    if config.num_kv_heads == config.num_heads and "num_heads" in overrides:
        derived["num_kv_heads"] = 0
    if config.num_decoder_layers == config.num_layers and "num_layers" in overrides:
        derived["num_decoder_layers"] = 0
    if "num_layers" in overrides:
        layers = parse_value("model.num_layers", overrides["num_layers"], "int")
        derived["windowed_layers"] = tuple(
            layer for layer in config.windowed_layers if layer < layers
        )
    return derived
