"""Hugging Face model families: how config fields and parameter names map to Firth's.

`names` maps our modules (with their weights and biases) or single parameters to theirs. `*` stands
for a number, such as a layer's; `{a,b}` for several of their matrices that are concatenated to one
of ours. Throughout, "ours" is Firth's name and "theirs" the one in Hugging Face files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from torch import Tensor

from firth.formats.huggingface.label_heads import TaskHead, read_labels, write_labels
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import InputError, MismatchError

ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu-tanh"),
    "relu": "relu",
    **dict.fromkeys(("silu", "swish"), "silu"),
}

ACTIVE = ("activation", "head_activation")  # config fields that are activations

# Fields without effect on what a network computes: initialization, names, and special tokens.
NOT_COMPUTED = (
    "initialization init_std family bos_token_id eos_token_id pad_token_id extra_eos_token_ids "
    "decoder_start_token_id forced_bos_token_id forced_eos_token_id"
).split()


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """A Hugging Face model family."""

    name: str  # their `model_type`
    classes: Mapping[str, tuple[str, ...]]  # their classes with their heads; the bare one last
    prefix: str  # of parameter names in classes with a head
    names: Mapping[str, str]  # our modules -> theirs
    head_names: Mapping[str, str] = field(default_factory=dict)  # the same for heads: no prefix
    task_heads: Mapping[str, TaskHead] = field(default_factory=dict)  # label heads
    fixed: Mapping[str, Any]  # our config fields that are the same in every model of the family
    fields: Mapping[str, str]  # our config fields -> theirs
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of their fields
    required: Mapping[str, Any] = field(default_factory=dict)  # the only supported values of theirs
    transposed: tuple[str, ...] = ()  # our modules whose weights they store transposed
    rows: tuple[str, ...] = ()  # our vectors that they store as a matrix of one row
    ignored: str = r"$^"  # their names that hold no trained weights
    aliases: Mapping[str, str] = field(default_factory=dict)  # older names -> current names
    copies: Mapping[str, str] = field(default_factory=dict)  # second name -> first; it wins
    takes_prefix: bool = False  # PEFT's prefix tuning has an effect on its models
    read: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {}  # our fields beyond `fields`
    write: Callable[[TransformerConfig], dict[str, Any]] = (
        lambda _: {}
    )  # their fields beyond `fields`

    def config(self, theirs: Mapping[str, Any]) -> TransformerConfig:
        """Convert their config to ours."""
        values = {**self.defaults, **theirs}
        for name, supported in self.required.items():
            if values.get(name, supported) != supported:
                raise InputError(
                    f"A {self.name} model with {name} = {values[name]!r} is not supported, "
                    f"only {supported!r}."
                )
        ours = dict(self.fixed)
        for name, key in self.fields.items():
            if key not in values:
                raise InputError(f"config.json of a {self.name} model lacks {key}.")
            ours[name] = values[key]
        TransformerConfig.check_sizes(
            {"num_layers": ours["num_layers"]}
        )  # before `read` lists layers
        ours |= self._labels(values) | self.read(values)
        ours |= {name: _activation(ours[name]) for name in ACTIVE if name in ours}
        ours |= read_eos(ours.get("eos_token_id"))
        ours["prefix_lm"] = theirs.get("prefix_lm", False)  # a field of ours only
        return TransformerConfig.from_dict({**ours, "family": self.name})

    def _labels(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return our fields for the label head of their class, if it has one."""
        named = theirs.get("architectures") or ()
        for name, head in self.task_heads.items():
            if head.cls in named:
                return {"label_head": name, **head.shape, **read_labels(theirs, name)}
        return {}

    def to_theirs(self, config: TransformerConfig, heads: Iterable[str]) -> dict[str, Any]:
        """Convert our config to theirs."""
        values = {
            key: their_activation(value) if name in ACTIVE else value
            for name, key in self.fields.items()
            for value in [getattr(config, name)]
        }
        if config.extra_eos_token_ids and "eos_token_id" in self.fields:
            values[self.fields["eos_token_id"]] = list(config.eos_token_ids)
        values |= self.required
        values |= self.write(config)
        values |= write_labels(config.labels, config.label_type)
        values |= {"prefix_lm": True} if config.prefix_lm else {}
        return {"architectures": [self.class_for(heads)], "model_type": self.name, **values}

    def fits(self, config: TransformerConfig, heads: Iterable[str] = ()) -> bool:
        """Return whether a config survives the conversion to theirs and back unchanged."""
        fixed = {name: value for name, value in self.fixed.items() if name not in NOT_COMPUTED}
        if any(getattr(config, name) != value for name, value in fixed.items()):
            return False
        try:
            again = self.config(self.to_theirs(config, heads))
        except (InputError, MismatchError):
            return False
        ignored = NOT_COMPUTED if config.label_head else [*NOT_COMPUTED, "pooling"]
        same = {name: getattr(config, name) for name in ignored}
        return replace(again, **same) == config

    @cached_property
    def all_classes(self) -> dict[str, tuple[str, ...]]:
        """Their classes with their heads, including label heads."""
        pooled = {True: ("pooler",), False: ()}
        labelled = {
            head.cls: (*pooled[head.pooler], name) for name, head in self.task_heads.items()
        }
        return {**labelled, **self.classes}

    def has(self, heads: Iterable[str]) -> bool:
        """Return whether one of their classes has all of these heads."""
        return any(set(heads) <= set(has) for has in self.all_classes.values())

    def class_for(self, heads: Iterable[str]) -> str:
        """Return their class with these heads and the fewest others."""
        names = set(heads)
        fitting = [name for name, has in self.all_classes.items() if names <= set(has)]
        if not fitting:
            raise MismatchError(
                f"No class of the family {self.name} has the heads {', '.join(sorted(names))}."
            )
        return min(reversed(fitting), key=lambda name: len(self.all_classes[name]))

    def is_bare(self, heads: Iterable[str]) -> bool:
        """Return whether the class for these heads is the bare one, without name prefix."""
        return self.class_for(heads) == list(self.classes)[-1]

    @cached_property
    def all_head_names(self) -> dict[str, str]:
        """The names of all heads."""
        rows = {
            f"heads.{name}.{ours}": theirs
            for name, head in self.task_heads.items()
            for ours, theirs in head.names.items()
        }
        return {**self.head_names, **rows}

    def their_names(self, ours: str) -> list[str]:
        """Return their names of one of our parameters, several if ours is a concatenation.

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
        """Return a view of (a part of) our parameter in the shape they store."""
        if ours.endswith(".weight") and any(part in ours for part in self.transposed):
            return tensor.t()
        return tensor[None] if ours in self.rows else tensor

    def normal(self, theirs: Iterable[str]) -> dict[str, str]:
        """Map names as `their_names` returns them to the names in a file."""
        found: dict[str, str] = {}
        modern = [re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name)) for name in theirs]
        has_prefix = bool(self.prefix) and any(name.startswith(self.prefix) for name in modern)
        heads = tuple(_expand(name)[0].split("*")[0] for name in self.all_head_names.values())
        for name, stored in zip(modern, theirs, strict=True):
            bare = not has_prefix and not (heads and name.startswith(heads))
            full = self.prefix + name if bare else name
            if re.search(self.ignored, full):
                continue
            if full in self.copies:
                found[self.copies[full]] = stored
            else:
                found.setdefault(self.aliases.get(full, full), stored)
        return found


def config_fields(text: str) -> dict[str, str]:
    """Parse a table of config fields: ours=theirs, or one name for both.

    >>> config_fields("vocab_size hidden_size=d_model")
    {'vocab_size': 'vocab_size', 'hidden_size': 'd_model'}
    """
    pairs = (word.partition("=") for word in text.split())
    return {ours: theirs or ours for ours, _, theirs in pairs}


def token_ids(**ids: int | None) -> dict[str, int | None]:
    """Name special tokens as in their configs: `pad=0` is {"pad_token_id": 0}."""
    return {f"{role}_token_id": id for role, id in ids.items()}


def masked_head(transform: str, norm: str, bias: str, weight: str) -> dict[str, str]:
    """Name the parameters of a head for masked language modelling."""
    theirs = dict(transform=transform, norm=norm, bias=bias, weight=weight)
    return {f"heads.language.{name}": value for name, value in theirs.items()}


@cache
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
            f"The activation {theirs!r} is not supported; known are {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[theirs]


def their_activation(ours: str) -> str:
    """Return their first name of an activation."""
    return next(theirs for theirs, name in ACTIVATIONS.items() if name == ours)


def refuse_unless_equal(theirs: Mapping[str, Any], first: str, second: str) -> None:
    """Raise `InputError` if two of their fields differ that are one field of ours."""
    if second in theirs and theirs[first] != theirs[second]:
        raise InputError(
            f"{first} is {theirs[first]!r}, but {second} is {theirs[second]!r}; "
            "only models in which they are equal are supported."
        )


def read_eos(theirs: Any) -> dict[str, Any]:
    """Read one EOS token or a list; the first is the one used in pre-training.

    >>> read_eos([2, 7])
    {'eos_token_id': 2, 'extra_eos_token_ids': [7]}
    """
    ids = theirs if isinstance(theirs, list) else [theirs]
    return {"eos_token_id": ids[0] if ids else None, "extra_eos_token_ids": ids[1:]}


AUTO_CLASSES = {  # by the ending of a class of transformers, if it is not its task
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "EncoderModel": "AutoModelForTextEncoding",
    "WithLMHeadModel": "AutoModelForMaskedLM",
    "LMHeadModel": "AutoModelForCausalLM",
}


def auto_class(name: str) -> str:
    """Return the Auto class of transformers that loads a checkpoint of a class.

    >>> auto_class("BertForTokenClassification"), auto_class("GPT2LMHeadModel")
    ('AutoModelForTokenClassification', 'AutoModelForCausalLM')
    >>> auto_class("T5ForConditionalGeneration"), auto_class("BertModel")
    ('AutoModelForSeq2SeqLM', 'AutoModel')
    """
    for ending, auto in AUTO_CLASSES.items():
        if name.endswith(ending):
            return auto
    task = re.search(r"For[A-Z]\w*$", name)
    return "AutoModel" + (task[0] if task else "")
