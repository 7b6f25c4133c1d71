"""Every way of fine-tuning as one row, and how a command line names it.

full                         everything learns
freeze:6                     the lowest six blocks and the embeddings do not
lora:rank=16,targets=qkv+up  options by name; several names joined by +
lora:8,dora                  the first option needs no name, one that is on or off no value
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from firth.adapt.adapters import Adapters, adapters
from firth.adapt.bitfit import Bitfit, bitfit
from firth.adapt.changes import Change
from firth.adapt.freeze import Freeze, Full, Gradual, Probe, freeze, full, gradual, probe
from firth.adapt.ia3 import Ia3, ia3
from firth.adapt.lora import Lora, lora
from firth.adapt.prompts import PrefixTuning, PromptTuning, prefix, prompt
from firth.errors import Misuse, meant
from firth.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of fine-tuning, and what it promises."""

    about: str
    options: type[Any]
    hangs: Callable[[Transformer, Any, int], dict[str, Change]] | None = None  # changes, by host
    opens: Callable[[Transformer, Any], list[str]] | None = None  # parameters of the network itself
    identity: bool = True  # at first the network computes what it computed before
    merges: bool = False  # can be worked into the weights of the network
    sums: bool = False  # several can be added up, each with a weight
    peft: str = ""  # what PEFT calls it, if it knows it


STRATEGIES: dict[str, Row] = {
    "full": Row(about="everything learns", options=Full, opens=full),
    "freeze": Row(
        about="the lower blocks and the embeddings stay as they are", options=Freeze, opens=freeze
    ),
    "probe": Row(about="only the head learns", options=Probe, opens=probe),
    "gradual": Row(
        about="the head learns first, then one block more in every epoch",
        options=Gradual,
        opens=gradual,
    ),
    "lora": Row(
        about="low-rank matrices beside the projections",
        options=Lora,
        hangs=lora,
        merges=True,
        sums=True,
        peft="LORA",
    ),
    "adapters": Row(
        about="bottlenecks behind the layers of each block", options=Adapters, hangs=adapters
    ),
    "prefix": Row(
        about="keys and values before the text, in every layer",
        options=PrefixTuning,
        hangs=prefix,
        identity=False,
        peft="PREFIX_TUNING",
    ),
    "prompt": Row(
        about="vectors before the text",
        options=PromptTuning,
        hangs=prompt,
        identity=False,
        peft="PROMPT_TUNING",
    ),
    "bitfit": Row(
        about="only the biases learn", options=Bitfit, hangs=bitfit, merges=True, sums=True
    ),
    "ia3": Row(
        about="keys, values and feed-forward layers are stretched",
        options=Ia3,
        hangs=ia3,
        merges=True,
        peft="IA3",
    ),
}


@dataclass(frozen=True)
class Strategy:
    """A way of fine-tuning with its options."""

    name: str
    options: Any

    @property
    def row(self) -> Row:
        """What the table says of it."""
        return STRATEGIES[self.name]

    def __str__(self) -> str:
        """As a command line says it.

        >>> str(strategy("lora:rank=16,targets=qkv+up,dora"))
        'lora:rank=16,targets=qkv+up,dora=true'
        """
        given = [
            f"{field.name}={_written(value)}"
            for field in fields(self.options)
            if (value := getattr(self.options, field.name)) != field.default
        ]
        return ":".join([self.name, ",".join(given)] if given else [self.name])


def strategy(spec: str) -> Strategy:
    """A way of fine-tuning from its name and options.

    >>> strategy("freeze:6")
    Strategy(name='freeze', options=Freeze(blocks=6))
    >>> strategy("loar")
    Traceback (most recent call last):
    firth.errors.Misuse: There is no strategy 'loar'; did you mean lora?
    >>> strategy("lora:rnak=4")
    Traceback (most recent call last):
    firth.errors.Misuse: lora has no option 'rnak'; did you mean rank?
    """
    name, _, rest = spec.strip().partition(":")
    if name not in STRATEGIES:
        raise Misuse(f"There is no strategy {name!r}; {meant(name, STRATEGIES)}")
    kind = STRATEGIES[name].options
    given: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, value = _assignment(name, kind, item)
        if key in given:
            raise Misuse(f"{spec!r} says {key} twice.")
        given[key] = value
    for field in fields(kind):
        if field.default is MISSING and field.name not in given:
            raise Misuse(f"{name} needs the number of {field.name}, as in {name}:2.")
    hints = get_type_hints(kind)
    return Strategy(name, kind(**{key: _read(name, key, given[key], hints[key]) for key in given}))


def from_options(name: str, given: dict[str, Any]) -> Strategy:
    """A way of fine-tuning from what a file says of it; unknown or wrong options are named."""
    spec = ",".join(f"{key}={_written(value)}" for key, value in given.items())
    return strategy(f"{name}:{spec}")


def _assignment(name: str, kind: type[Any], item: str) -> tuple[str, str]:
    """`key=value`; a value alone is the first option's, the name of a switch turns it on."""
    names, hints = [field.name for field in fields(kind)], get_type_hints(kind)
    key, equals, value = (part.strip() for part in item.partition("="))
    if not equals and hints.get(key) is bool:
        return key, "true"
    if not equals and names and key not in names:
        return names[0], key
    if key not in names:
        raise Misuse(f"{name} has no option {key!r}; {meant(key, names)}")
    return key, value


def _read(name: str, key: str, value: str, kind: Any) -> Any:
    """A value as its field wants it."""
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
        words = {int: "a whole number", float: "a number", bool: "true or false"}
        wanted = words.get(kind) or " or ".join(map(str, get_args(kind)))
        raise Misuse(f"The option {key} of {name} is {wanted}, not {value!r}.") from None


def _written(value: Any) -> str:
    """A value as `_read` reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
