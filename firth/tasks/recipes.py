"""How a model is adapted unless something else is said: the lectures' recipes, as rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from firth.adapt.table import strategy as strategy_named
from firth.errors import Misuse
from firth.models.config import ModelConfig
from firth.training.losses import AT_ONCE
from firth.training.machine import suited
from firth.training.settings import TuningSettings

WIDTH = 768  # of the models the recipes were made for
FEWEST = 150  # steps, where data are few: more epochs (Mosbach et al. 2021)
MOST_EPOCHS = 20.0
# How much faster than everything what a strategy trains must learn, and what else it changes.
FASTER = {
    "probe": 50.0,
    "lora": 10.0,
    "adapters": 10.0,
    "bitfit": 20.0,
    "ia3": 100.0,
    "prefix": 100.0,
    "prompt": 125.0,
}
BESIDES: dict[str, dict[str, Any]] = {
    "gradual": {"schedule": "slanted", "layer_decay": 1 / 2.6},  # Howard and Ruder 2018, section 3
}
SCRATCH = 4.0  # times the rate, for a model that knows nothing yet


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the lectures advise for a kind of work with a model of BERT-base's size."""

    task: str
    rate: float
    epochs: float
    batch: int = 16
    length: int = 256
    freeze: int = 0  # bottom blocks, of twelve


RECIPES: dict[str, Recipe] = {
    "sentiment": Recipe(task="classify", rate=2e-5, epochs=4),
    "topic": Recipe(task="classify", rate=3e-5, epochs=3),
    "spam": Recipe(task="classify", rate=2e-5, epochs=4, freeze=6),
    "paraphrase": Recipe(task="pair", rate=2e-5, epochs=4),
    "similarity": Recipe(task="regress", rate=2e-5, epochs=4),
    "choice": Recipe(task="choice", rate=2e-5, epochs=3),
    "ner": Recipe(task="tag", rate=5e-5, epochs=3),
    "domain-ner": Recipe(task="tag", rate=2e-5, epochs=5, freeze=8),
    "squad": Recipe(task="span", rate=3e-5, epochs=2, length=384),
    "qa": Recipe(task="span", rate=5e-5, epochs=4, length=384),
    "translation": Recipe(task="seq2seq", rate=1e-4, epochs=3, batch=32),
    "summarisation": Recipe(task="seq2seq", rate=3e-5, epochs=3, length=512),
    "completion": Recipe(task="lm", rate=2e-5, epochs=3, length=512),
    "dialogue": Recipe(task="lm", rate=1e-5, epochs=3, length=512),
}


def recipes_for(task: str) -> dict[str, Recipe]:
    """The recipes of a task; of one that the lectures do not know, what suits most.

    >>> list(recipes_for("tag")), recipes_for("rhyme")["usual"].epochs
    (['ner', 'domain-ner'], 3)
    """
    own = {name: row for name, row in RECIPES.items() if row.task == task}
    return own or {"usual": Recipe(task=task, rate=2e-5, epochs=3)}


def recipe_for(task: str, name: str | None) -> tuple[str, Recipe]:
    """A recipe by its name, or the first for a task."""
    fitting = recipes_for(task)
    if name is None:
        return next(iter(fitting.items()))
    if name not in fitting:
        raise Misuse(f"There is no recipe {name!r} for {task}; there are {', '.join(fitting)}.")
    return name, fitting[name]


def tuning_settings(
    recipe: Recipe,
    config: ModelConfig,
    examples: int,
    *,
    strategy: str = "full",
    seed: int,
    device: str,
    scratch: bool = False,
    replay: bool = False,
    changes: Mapping[str, Any],
) -> TuningSettings:
    """A recipe for a model of this size and so many examples; then what was asked for.

    The rate grows as the model gets narrower than BERT-base, and for one that was never
    pre-trained; few examples are seen more often. Steps on a text to replay come on top.
    """
    kind = strategy.partition(":")[0]
    rate = recipe.rate * width_factor(config.width) * FASTER.get(kind, SCRATCH if scratch else 1.0)
    often = FEWEST * recipe.batch / max(1, examples)
    batch = _number("batch", changes.get("batch", recipe.batch))
    usual = {
        "epochs": max(recipe.epochs, min(MOST_EPOCHS, often)),
        "rate": rate,
        "micro": AT_ONCE,
        **BESIDES.get(kind, {}),
    }
    sizes = {"batch": str(batch), "length": str(sequence_length(recipe, config, changes))}
    settings = TuningSettings(seed=seed).changed({**usual, **changes, **sizes})
    if not settings.steps and not settings.minutes and not settings.tokens:
        steps = math.ceil(examples / batch * settings.epochs)
        steps += steps // settings.replay if replay else 0
        settings = replace(settings, steps=max(1, steps))
    return suited(settings, device)


def places_taken(spec: str) -> int:
    """How many places of a sequence a strategy takes for itself: a prefix's, a prompt's.

    >>> places_taken("prefix:40"), places_taken("lora")
    (40, 0)
    """
    kind = spec.partition(":")[0]
    return int(strategy_named(spec).options.length) if kind in ("prefix", "prompt") else 0


def sequence_length(
    recipe: Recipe, config: ModelConfig, changes: Mapping[str, Any], taken: int = 0
) -> int:
    """How many tokens the longest sequence has: as asked for, or as the recipe and the model say.

    >>> from firth.models.presets import preset
    >>> sequence_length(RECIPES["squad"], preset("bert-base").config, {})
    384
    """
    context = config.reading.context
    length = _number("length", changes.get("length", min(recipe.length, context)))
    if length > context:
        raise Misuse(f"A length of {length} is beyond the model's context of {context}; set less.")
    return min(length, max(1, context - taken))


def width_factor(width: int) -> float:
    """What the rate of a model of this width is, compared with that of BERT-base's.

    >>> width_factor(192), width_factor(768), width_factor(1536)
    (16.0, 1.0, 0.5)
    """
    return (WIDTH / width) ** (2 if width < WIDTH else 1)


def _number(name: str, value: Any) -> int:
    if not str(value).isdecimal() or not int(value):
        raise Misuse(f"{name} is one whole number above 0 when a model is adapted, not {value!r}.")
    return int(value)


def frozen_blocks(recipe: Recipe, config: ModelConfig) -> int:
    """How many bottom blocks stay as they are: the recipe's share of this model's depth.

    >>> from firth.models.presets import preset
    >>> frozen_blocks(RECIPES["spam"], preset("bert-mini").config)
    2
    """
    return recipe.freeze * depth(config) // 12


def depth(config: ModelConfig) -> int:
    """How many blocks a network has; one that is used again in every layer is one."""
    return 1 if config.shared else config.layers + config.decoder_layers
