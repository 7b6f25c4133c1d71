"""How the rest of the world writes a model down: one table of names for each family.

A row says where a module of ours is found among theirs. `*` stands for a number, such as that of a
layer; `{a,b}` for several of their matrices that are one of ours, one below the other. A row names
a module, whose weight and bias follow, or a single parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from firth.errors import InputError, MismatchError
from firth.models.config import ModelConfig
from firth.models.formats.labels import TaskHead, read_labels, write_labels

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

ACTIVE = ("activation", "head_activation")  # fields that name one of these

# Fields that do not say what a network computes: how its weights begin, how they are named, and
# which tokens frame a text (the tokenizer knows them too).
OUTSIDE = ("initialisation", "spread", "family", "begin_id", "end_id", "padding_id")


@dataclass(frozen=True, kw_only=True)
class Family:
    """One way of writing models down."""

    name: str  # their `model_type`
    classes: Mapping[str, tuple[str, ...]]  # theirs, with the heads in their files; bare one last
    prefix: str  # what stands before names in a class with a head
    names: Mapping[str, str]  # of the network
    head_names: Mapping[str, str] = field(default_factory=dict)  # these have no prefix
    task_heads: Mapping[str, TaskHead] = field(default_factory=dict)  # heads for labels
    fixed: Mapping[str, Any]  # what is so in every model of the family
    fields: Mapping[str, str]  # our field -> theirs
    defaults: Mapping[str, Any] = field(default_factory=dict)  # theirs, where a file is silent
    required: Mapping[str, Any] = field(default_factory=dict)  # what no model here may differ in
    transposed: tuple[str, ...] = ()  # modules of ours that they store the other way round
    rows: tuple[str, ...] = ()  # parameters of ours that they store as a matrix of one row
    ignored: str = r"$^"  # their names that hold nothing that was learned
    aliases: Mapping[str, str] = field(default_factory=dict)  # older names -> those of today
    copies: Mapping[str, str] = field(default_factory=dict)  # a second name -> the first; it counts
    takes_prefix: bool = False  # its networks look at what PEFT gives them as a prefix
    read: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {}  # what no row can say
    write: Callable[[ModelConfig], dict[str, Any]] = lambda _: {}

    def config(self, theirs: Mapping[str, Any]) -> ModelConfig:
        """Our configuration from theirs."""
        values = {**self.defaults, **theirs}
        for name, wanted in self.required.items():
            if values.get(name, wanted) != wanted:
                raise InputError(
                    f"A {self.name} model with {name} = {values[name]!r} cannot be read here, "
                    f"only {wanted!r}."
                )
        ours = dict(self.fixed)
        for name, key in self.fields.items():
            if key not in values:
                raise InputError(f"config.json of a {self.name} model lacks {key}.")
            ours[name] = values[key]
        ours |= self._labels(values) | self.read(values)
        ours |= {name: _activation(ours[name]) for name in ACTIVE if name in ours}
        ours["end_id"] = _first(ours.get("end_id"))
        return ModelConfig.from_dict({**ours, "family": self.name})

    def _labels(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """What our configuration says of a head for labels, if a class of theirs has one."""
        named = theirs.get("architectures") or ()
        for name, head in self.task_heads.items():
            if head.cls in named:
                return {"label_head": name, **head.shape, **read_labels(theirs, name)}
        return {}

    def to_theirs(self, config: ModelConfig, heads: Iterable[str]) -> dict[str, Any]:
        """Their configuration from ours."""
        values = {
            key: their_activation(value) if name in ACTIVE else value
            for name, key in self.fields.items()
            for value in [getattr(config, name)]
        }
        values |= self.required
        values |= self.write(config)
        values |= write_labels(config.labels, config.labelling)
        return {"architectures": [self.class_for(heads)], "model_type": self.name, **values}

    def fits(self, config: ModelConfig, heads: Iterable[str] = ()) -> bool:
        """Whether a model of this shape can be written down this way without loss."""
        usual = {name: value for name, value in self.fixed.items() if name not in OUTSIDE}
        if any(getattr(config, name) != value for name, value in usual.items()):
            return False
        try:
            again = self.config(self.to_theirs(config, heads))
        except (InputError, MismatchError):
            return False
        outside = OUTSIDE if config.label_head else (*OUTSIDE, "pooling")
        same = {name: getattr(config, name) for name in outside}
        return replace(again, **same) == config

    @cached_property
    def all_classes(self) -> dict[str, tuple[str, ...]]:
        """Every class of theirs with its heads, those for labels too."""
        pooled = {True: ("pooler",), False: ()}
        labelled = {
            head.cls: (*pooled[head.pooler], name) for name, head in self.task_heads.items()
        }
        return {**labelled, **self.classes}

    def has(self, heads: Iterable[str]) -> bool:
        """Whether a class of theirs has all of these heads."""
        return any(set(heads) <= set(has) for has in self.all_classes.values())

    def class_for(self, heads: Iterable[str]) -> str:
        """Their class that has just these heads, or the nearest that has no fewer."""
        wanted = set(heads)
        fitting = [name for name, has in self.all_classes.items() if wanted <= set(has)]
        if not fitting:
            raise MismatchError(
                f"No class of the family {self.name} has the heads {', '.join(sorted(wanted))}."
            )
        return min(reversed(fitting), key=lambda name: len(self.all_classes[name]))

    def is_bare(self, heads: Iterable[str]) -> bool:
        """Whether the class for these heads puts nothing before the names of the network."""
        return self.class_for(heads) == list(self.classes)[-1]

    @cached_property
    def all_head_names(self) -> dict[str, str]:
        """The rows of every head."""
        rows = {
            f"heads.{name}.{ours}": theirs
            for name, head in self.task_heads.items()
            for ours, theirs in head.names.items()
        }
        return {**self.head_names, **rows}

    def their_names(self, ours: str) -> list[str]:
        """Where a parameter of ours is found: several names when ours is made of several.

        The names are those of a class with a head.
        """
        for table, prefix in ((self.names, self.prefix), (self.all_head_names, "")):
            for row, theirs in table.items():
                if matched := re.fullmatch(_pattern(row), ours):
                    *numbers, suffix = matched.groups(default="")
                    for number in numbers:
                        theirs = theirs.replace("*", number, 1)
                    return _expand(prefix + theirs + suffix)
        raise MismatchError(f"The family {self.name} has no name for {ours}.")

    def as_stored(self, ours: str, tensor: Tensor) -> Tensor:
        """A view of a parameter of ours, or a piece of it, that has the shape they give it."""
        if ours.endswith(".weight") and any(part in ours for part in self.transposed):
            return tensor.t()
        return tensor[None] if ours in self.rows else tensor

    def normal(self, theirs: Iterable[str]) -> dict[str, str]:
        """The names of a file as `their_names` writes them -> as they stand in the file."""
        found: dict[str, str] = {}
        begun = [re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name)) for name in theirs]
        has_prefix = bool(self.prefix) and any(name.startswith(self.prefix) for name in begun)
        heads = tuple(_expand(name)[0].split("*")[0] for name in self.all_head_names.values())
        for name, stored in zip(begun, theirs, strict=True):
            bare = not has_prefix and not (heads and name.startswith(heads))
            full = self.prefix + name if bare else name
            if re.search(self.ignored, full):
                continue
            if full in self.copies:
                found[self.copies[full]] = stored
            else:
                found.setdefault(self.aliases.get(full, full), stored)
        return found


def _pattern(row: str) -> str:
    return re.escape(row).replace(r"\*", r"(\d+)") + r"(\.weight|\.bias)?"


def _expand(name: str) -> list[str]:
    """`a.{b,c}.d` -> `a.b.d`, `a.c.d`."""
    if not (braces := re.search(r"\{(.*?)\}", name)):
        return [name]
    return [name.replace(braces[0], part) for part in braces[1].split(",")]


def _activation(theirs: str) -> str:
    if theirs in ACTIVATIONS.values():
        return theirs
    if theirs not in ACTIVATIONS:
        raise InputError(
            f"The activation {theirs!r} is not known; known are {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[theirs]


def their_activation(ours: str) -> str:
    """The first of their names for an activation."""
    return next(theirs for theirs, name in ACTIVATIONS.items() if name == ours)


def refuse_unless_equal(theirs: Mapping[str, Any], first: str, second: str) -> None:
    """Refuse a model that differs in two values which are one value here."""
    if second in theirs and theirs[first] != theirs[second]:
        raise InputError(
            f"{first} is {theirs[first]!r}, but {second} is {theirs[second]!r}; "
            "only models in which they are equal can be read here."
        )


def _first(value: Any) -> int | None:
    """Some families list several end tokens; the first is the one that was trained."""
    return value[0] if isinstance(value, list) else value
