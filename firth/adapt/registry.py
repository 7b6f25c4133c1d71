"""The registry of fine-tuning strategies, and their names on the command line.

full                         train all parameters
freeze:6                     freeze the embeddings and the lowest six blocks
probe:layer=mix              train a head on a learned weighting of all layers
lora:rank=16,targets=qkv+up  options by name; + joins several values
lora:8,dora                  the first option needs no name, a boolean option no value
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from firth.adapt.adapters import AdapterConfig, adapters
from firth.adapt.bitfit import bitfit
from firth.adapt.freeze import FreezeConfig, NoOptions, ProbeConfig, freeze, freeze_all, full
from firth.adapt.ia3 import IA3Config, ia3
from firth.adapt.injection import InjectedModule
from firth.adapt.lora import LoraConfig, lora
from firth.adapt.prompt_tuning import PrefixTuningConfig, PromptTuningConfig, prefix, prompt
from firth.models.language_model import LanguageNetwork
from firth.models.transformer import Transformer
from firth.utils.errors import UsageError, suggest


@dataclass(frozen=True)
class StrategyRow:
    """A fine-tuning strategy: its config class, its implementation and its properties.

    Exactly one of `inject` and `unfreeze` is set. `inject(network, config, seed)` returns the
    modules to insert, by the path of the module they attach to; `unfreeze(network, config)` returns
    the names of the network's own parameters to train.
    """

    about: str
    options: type[Any]
    inject: Callable[[Transformer, Any, int], dict[str, InjectedModule]] | None = None
    unfreeze: Callable[[LanguageNetwork, Any], list[str]] | None = None
    starts_as_identity: bool = True  # before training, the network's outputs are unchanged
    mergeable: bool = False  # can be merged into the weights of the network
    additive: bool = False  # several adapters can be combined as a weighted sum
    peft: str = ""  # PEFT's peft_type, "" if PEFT has no equivalent


STRATEGIES: dict[str, StrategyRow] = {
    "full": StrategyRow("train all parameters", NoOptions, unfreeze=full),
    "freeze": StrategyRow(
        "freeze the embeddings and the lower blocks", FreezeConfig, unfreeze=freeze
    ),
    "probe": StrategyRow("train the head only", ProbeConfig, unfreeze=freeze_all),
    "gradual": StrategyRow(
        "gradual unfreezing: the head first, then one more block per epoch (ULMFiT)",
        NoOptions,
        unfreeze=freeze_all,
    ),
    "lora": StrategyRow(
        "low-rank updates of the linear projections",
        LoraConfig,
        lora,
        mergeable=True,
        additive=True,
        peft="LORA",
    ),
    "adapters": StrategyRow(
        "bottleneck adapters after the sub-layers of each block", AdapterConfig, adapters
    ),
    "prefix": StrategyRow(
        "prefix tuning: trainable keys and values in every layer",
        PrefixTuningConfig,
        prefix,
        starts_as_identity=False,
        peft="PREFIX_TUNING",
    ),
    "prompt": StrategyRow(
        "prompt tuning: trainable embeddings before the input",
        PromptTuningConfig,
        prompt,
        starts_as_identity=False,
        peft="PROMPT_TUNING",
    ),
    "bitfit": StrategyRow(
        "train the biases only", NoOptions, bitfit, mergeable=True, additive=True
    ),
    "ia3": StrategyRow(
        "rescale keys, values and feed-forward activations",
        IA3Config,
        ia3,
        mergeable=True,
        peft="IA3",
    ),
}


@dataclass(frozen=True)
class Strategy:
    """A fine-tuning strategy with its options."""

    name: str
    options: Any

    @property
    def row(self) -> StrategyRow:
        """The registry entry of the strategy."""
        return STRATEGIES[self.name]

    def __str__(self) -> str:
        """Format as on the command line; options with their default value are left out.

        >>> str(parse_strategy("lora:rank=16,targets=qkv+up,dora"))
        'lora:rank=16,targets=qkv+up,dora=true'
        """
        given = [
            f"{field.name}={_format_value(value)}"
            for field in fields(self.options)
            if (value := getattr(self.options, field.name)) != field.default
        ]
        return ":".join([self.name, ",".join(given)] if given else [self.name])


def parse_strategy(spec: str) -> Strategy:
    """Parse a strategy as given on the command line.

    >>> parse_strategy("freeze:6")
    Strategy(name='freeze', options=FreezeConfig(blocks=6))
    >>> parse_strategy("loar")
    Traceback (most recent call last):
    firth.utils.errors.UsageError: There is no strategy 'loar'; did you mean lora?
    >>> parse_strategy("lora:rnak=4")
    Traceback (most recent call last):
    firth.utils.errors.UsageError: lora has no option 'rnak'; did you mean rank?
    """
    name, _, rest = spec.strip().partition(":")
    if name not in STRATEGIES:
        raise UsageError(f"There is no strategy {name!r}; {suggest(name, STRATEGIES)}")
    kind = STRATEGIES[name].options
    given: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, value = _assignment(name, kind, item)
        if key in given:
            raise UsageError(f"{spec!r} sets {key} twice.")
        given[key] = value
    for field in fields(kind):
        if field.default is MISSING and field.name not in given:
            raise UsageError(f"{name} requires the option {field.name}, for example {name}:2.")
    hints = get_type_hints(kind)
    values = {key: _parse_value(name, key, given[key], hints[key]) for key in given}
    return Strategy(name, kind(**values))


def strategy_from_options(name: str, given: dict[str, Any]) -> Strategy:
    """Build a strategy from the options in a file; raise `UsageError` if an option is invalid."""
    spec = ",".join(f"{key}={_format_value(value)}" for key, value in given.items())
    return parse_strategy(f"{name}:{spec}")


def _assignment(name: str, kind: type[Any], item: str) -> tuple[str, str]:
    """Parse `key=value`, `value` for the first option, or `key` to turn a boolean option on."""
    names, hints = [field.name for field in fields(kind)], get_type_hints(kind)
    key, equals, value = (part.strip() for part in item.partition("="))
    if not equals and hints.get(key) is bool:
        return key, "true"
    if not equals and names and key not in names:
        return names[0], key
    if key not in names:
        raise UsageError(f"{name} has no option {key!r}; {suggest(key, names)}")
    return key, value


def _parse_value(name: str, key: str, value: str, kind: Any) -> Any:
    """Convert a value to the type of its field."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        if get_origin(kind) is tuple:
            one = get_args(kind)[0]
            return tuple(one(part) for part in value.split("+") if part)
        if get_origin(kind) is Literal:
            return {word: word for word in get_args(kind)}[value]
        return kind(value)
    except (ValueError, KeyError):
        words = {int: "an integer", float: "a number", bool: "true or false"}
        expected = words.get(kind) or " or ".join(map(str, get_args(kind)))
        raise UsageError(f"The option {key} of {name} must be {expected}, not {value!r}.") from None


def _format_value(value: Any) -> str:
    """Format a value so that `_parse_value` reads it back."""
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
