"""Default fine-tuning hyperparameters: the course's recipes, one row for each use case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firth.adapt.registry import parse_strategy
from firth.models.config import ModelConfig
from firth.models.flops import training_flops
from firth.models.presets.task_models import TaskSpecificModel
from firth.models.recurrent.recurrent_configs import BengioConfig, RecurrentConfig
from firth.models.transformer_config import TransformerConfig
from firth.training.config import FinetuneTrainingConfig
from firth.training.losses import INFERENCE_BATCH_TOKENS
from firth.training.runtime import resolve_auto_settings
from firth.utils.devices import DeviceSpec
from firth.utils.errors import UsageError

BASE_HIDDEN_SIZE = 768  # of BERT-base, for which the recipes are
MIN_STEPS = 150  # small datasets get more epochs (Mosbach et al. 2021)
MAX_EPOCHS = 20.0
# Learning rate of each strategy as a multiple of full fine-tuning's.
LR_FACTORS = {
    "probe": 50.0,
    "lora": 10.0,
    "adapters": 10.0,
    "bitfit": 20.0,
    "ia3": 100.0,
    "prefix": 100.0,
    "prompt": 125.0,
}
STRATEGY_DEFAULTS: dict[str, dict[str, Any]] = {
    "gradual": {
        "schedule": "slanted",
        "layer_lr_decay": 1 / 2.6,
    },  # Howard and Ruder 2018, section 3
}
# They freeze the model's matrices, but need the gradients of its hidden states.
PARAMETER_EFFICIENT = ("lora", "adapters", "bitfit", "ia3", "prefix", "prompt")
# The strategies of `--strategy all`; `half` is half of the model's blocks.
ALL_STRATEGIES = (
    *("full", "freeze:half", "probe", "probe-then-full", "gradual"),
    *PARAMETER_EFFICIENT,
)
SCRATCH_LR_FACTOR = 4.0  # for a randomly initialized model


RECURRENT_LR_FACTOR = 100.0  # of recurrent networks, whose learning rate depends less on their size
ULMFIT_ADAM = {"beta1": 0.7, "beta2": 0.99}


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe:
    """Hyperparameters for one use case with a model of BERT-base's size."""

    task: str
    learning_rate: float
    epochs: float
    batch_size: int = 16
    max_length: int = 256
    freeze_blocks: int = 0  # lowest blocks, of twelve
    strategy: str = ""  # default; "": full, or freeze
    head: Mapping[str, Any] = field(default_factory=dict)  # settings of the head
    training: Mapping[str, Any] = field(default_factory=dict)  # other fields of the training config
    validate_first: bool = False  # validate before the first step: it may be the best
    language_model: str = ""  # recipe of an earlier run, on the texts alone
    scales: bool = True  # the learning rate follows the model's hidden size


RECIPES: dict[str, FinetuneRecipe] = {
    "sentiment": FinetuneRecipe(task="classify", learning_rate=2e-5, epochs=4),
    "topic": FinetuneRecipe(task="classify", learning_rate=3e-5, epochs=3),
    "spam": FinetuneRecipe(task="classify", learning_rate=2e-5, epochs=4, freeze_blocks=6),
    "paraphrase": FinetuneRecipe(task="pair", learning_rate=2e-5, epochs=4),
    "similarity": FinetuneRecipe(task="regress", learning_rate=2e-5, epochs=4),
    "choice": FinetuneRecipe(task="choice", learning_rate=2e-5, epochs=3),
    "ner": FinetuneRecipe(task="tag", learning_rate=5e-5, epochs=3),
    "domain-ner": FinetuneRecipe(task="tag", learning_rate=2e-5, epochs=5, freeze_blocks=8),
    "squad": FinetuneRecipe(task="span", learning_rate=3e-5, epochs=2, max_length=384),
    "qa": FinetuneRecipe(task="span", learning_rate=5e-5, epochs=4, max_length=384),
    "translation": FinetuneRecipe(task="seq2seq", learning_rate=1e-4, epochs=3, batch_size=32),
    "summarisation": FinetuneRecipe(task="seq2seq", learning_rate=3e-5, epochs=3, max_length=512),
    "completion": FinetuneRecipe(task="lm", learning_rate=2e-5, epochs=3, max_length=512),
    "dialogue": FinetuneRecipe(task="lm", learning_rate=1e-5, epochs=3, max_length=512),
    # Howard and Ruder 2018: learning rates of 0.004 and 0.01 for an AWD-LSTM, Adam with beta1 0.7.
    "ulmfit": FinetuneRecipe(
        task="classify",
        learning_rate=1e-4,
        epochs=6,
        batch_size=32,
        strategy="gradual",
        head={"pooling": "concat", "layers": 1, "activation": "relu"},
        training=ULMFIT_ADAM,
        language_model="ulmfit-lm",
    ),
    "ulmfit-lm": FinetuneRecipe(
        task="lm",
        learning_rate=4e-5,
        epochs=4,
        batch_size=32,
        training={"schedule": "slanted", "layer_lr_decay": 1 / 2.6, **ULMFIT_ADAM},
        validate_first=True,
    ),
}


def recipes_for(task: str) -> dict[str, FinetuneRecipe]:
    """The recipes of a task; a task without any gets default values.

    >>> list(recipes_for("tag")), recipes_for("rhyme")["usual"].epochs
    (['ner', 'domain-ner'], 3)
    """
    own = {name: row for name, row in RECIPES.items() if row.task == task}
    return own or {"usual": FinetuneRecipe(task=task, learning_rate=2e-5, epochs=3)}


def recipe_for(task: str, name: str | None) -> tuple[str, FinetuneRecipe]:
    """Look up a recipe by name; by default, the first of the task."""
    fitting = recipes_for(task)
    if name is None:
        return next(iter(fitting.items()))
    if name not in fitting:
        raise UsageError(f"There is no recipe {name!r} for {task}; there are {', '.join(fitting)}.")
    return name, fitting[name]


def finetune_training_config(
    recipe: FinetuneRecipe,
    config: ModelConfig,
    examples: int,
    *,
    strategy: str = "full",
    device: DeviceSpec,
    scratch: bool = False,
    replay: bool = False,
    overrides: Mapping[str, Any],
) -> FinetuneTrainingConfig:
    """Scale a recipe to the model and the number of examples, then apply `overrides`.

    The learning rate is higher for models narrower than BERT-base and for randomly initialized
    ones; small datasets get more epochs. Steps on replayed text are added to the total.
    """
    kind = strategy.partition(":")[0]
    rate = recipe_learning_rate(recipe, config, strategy, scratch=scratch)
    usual_batch = recipe_batch_size(recipe, examples)
    min_epochs = MIN_STEPS * usual_batch / max(1, examples)
    batch = _number("batch_size", overrides.get("batch_size", usual_batch))
    defaults = {
        "epochs": max(recipe.epochs, min(MAX_EPOCHS, min_epochs)),
        "learning_rate": rate,
        "micro_batch_tokens": INFERENCE_BATCH_TOKENS,
        **STRATEGY_DEFAULTS.get(kind, {}),
        **recipe.training,
    }
    sizes = {"batch_size": batch, "max_length": str(sequence_length(recipe, config, overrides))}
    settings = FinetuneTrainingConfig().with_overrides({**defaults, **overrides, **sizes})
    if not settings.steps and not settings.minutes and not settings.tokens:
        steps = math.ceil(examples / batch * settings.epochs)
        steps += steps // settings.replay_every if replay else 0
        settings = replace(settings, steps=max(1, steps))
    flops = 0.0
    if isinstance(config, TransformerConfig):
        predicted = float(recipe.task in ("lm", "seq2seq"))  # others have no vocabulary head
        length = int(settings.max_length)
        frozen = kind in PARAMETER_EFFICIENT
        flops = training_flops(config, settings.expected_tokens, length, predicted, frozen=frozen)
    return resolve_auto_settings(settings, flops, device)


def recipe_batch_size(recipe: FinetuneRecipe, examples: int) -> int:
    """The batch size of a recipe; few examples of a model with random weights have smaller batches.

    So at most `MAX_EPOCHS` are `MIN_STEPS` steps, which such a model needs to learn anything.

    >>> from firth.models.presets.task_models import TASK_MODELS
    >>> tagger = task_model_recipe(TASK_MODELS["bilstm-crf"], "tag")
    >>> recipe_batch_size(tagger, 100), recipe_batch_size(tagger, 10_000)
    (13, 64)
    """
    if recipe.scales:
        return recipe.batch_size
    return min(recipe.batch_size, max(1, int(examples * MAX_EPOCHS) // MIN_STEPS))


def recipe_learning_rate(
    recipe: FinetuneRecipe, config: ModelConfig, strategy: str = "full", *, scratch: bool = False
) -> float:
    """The learning rate of a recipe for this model and strategy.

    >>> from firth.models.presets import preset
    >>> recipe_learning_rate(RECIPES["sentiment"], preset("bert-base").config, "lora:4")
    0.0002
    """
    factor = LR_FACTORS.get(strategy.partition(":")[0], SCRATCH_LR_FACTOR if scratch else 1.0)
    factor *= network_lr_factor(config) if recipe.scales else 1.0
    return recipe.learning_rate * factor


def task_model_recipe(row: TaskSpecificModel, task: str) -> FinetuneRecipe:
    """Return the recipe of a task-specific model, whose learning rate is for its own size."""
    return FinetuneRecipe(
        task=task,
        learning_rate=row.learning_rate,
        epochs=row.epochs,
        batch_size=row.batch_size,
        scales=False,
        strategy=row.strategy,
        training=row.settings,
    )


def num_virtual_tokens(spec: str) -> int:
    """The number of positions that a strategy's prefix or soft prompt takes.

    >>> num_virtual_tokens("prefix:40"), num_virtual_tokens("lora")
    (40, 0)
    """
    kind = spec.partition(":")[0]
    return int(parse_strategy(spec).options.length) if kind in ("prefix", "prompt") else 0


def sequence_length(
    recipe: FinetuneRecipe, config: ModelConfig, overrides: Mapping[str, Any], taken: int = 0
) -> int:
    """The maximum sequence length: max_length, or what recipe and model allow.

    >>> from firth.models.presets import preset
    >>> sequence_length(RECIPES["squad"], preset("bert-base").config, {})
    384
    """
    context = config.input_config.max_positions
    length = _number("max_length", overrides.get("max_length", min(recipe.max_length, context)))
    if length > context:
        raise UsageError(
            f"max_length {length} exceeds the model's {context} positions; set a smaller one."
        )
    return min(length, max(1, context - taken))


def network_lr_factor(config: ModelConfig) -> float:
    """The learning rate for a network, relative to BERT-base's.

    >>> from firth.models.presets import preset
    >>> [network_lr_factor(preset(name).config) for name in ("decoder-tiny", "awd-lstm")]
    [16.0, 100.0]
    """
    if isinstance(config, RecurrentConfig | BengioConfig):
        return RECURRENT_LR_FACTOR
    return learning_rate_factor(config.hidden_size)


def learning_rate_factor(width: int) -> float:
    """The learning rate for a model of this hidden size, relative to BERT-base's.

    >>> learning_rate_factor(192), learning_rate_factor(768), learning_rate_factor(1536)
    (16.0, 1.0, 0.5)
    """
    return (BASE_HIDDEN_SIZE / width) ** (2 if width < BASE_HIDDEN_SIZE else 1)


def _number(name: str, value: Any) -> int:
    if not str(value).isdecimal() or not int(value):
        raise UsageError(f"{name} must be a positive integer for fine-tuning, not {value!r}.")
    return int(value)


def frozen_blocks(recipe: FinetuneRecipe, config: ModelConfig) -> int:
    """The number of lowest blocks to freeze: the recipe's fraction of this model's depth.

    >>> from firth.models.presets import preset
    >>> frozen_blocks(RECIPES["spam"], preset("bert-mini").config)
    2
    """
    return recipe.freeze_blocks * depth(config) // 12


def expand_strategies(names: Sequence[str], config: ModelConfig) -> list[str]:
    """Return full strategy names; "all" means every strategy, an unknown name is a usage error.

    >>> from firth.models.presets import preset
    >>> expand_strategies(["freeze:half", "lora"], preset("bert-base").config)
    ['freeze:6', 'lora']
    """
    chosen = ALL_STRATEGIES if list(names) == ["all"] else names
    specs = [name.replace("half", str(max(1, depth(config) // 2))) for name in chosen]
    for spec in specs:
        parse_strategy("full" if spec == "probe-then-full" else spec)
    return specs


def depth(config: ModelConfig) -> int:
    """The number of blocks; with shared layers, one."""
    return 1 if config.share_layers else config.num_layers + config.num_decoder_layers
