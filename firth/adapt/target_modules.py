"""The linear projections of a network that an adapter can target, by name.

Query, key and value projections are one fused matrix here. BERT's files store three matrices,
GPT-2's one; adapters follow the files, so that PEFT reads them for the same model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from firth.adapt.injection import block_modules
from firth.formats.huggingface.directory import family_of
from firth.formats.huggingface.family import ModelFamily
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.models.layers import FusedLinear
from firth.utils.errors import UsageError

FUSED = {"qkv": ("query", "key", "value"), "kv": ("key", "value")}
GROUPS = {
    "qkv": ("query", "key", "value"),
    "attention": ("query", "key", "value", "output"),
    "feed_forward": ("gate", "up", "down"),
    "all": ("query", "key", "value", "output", "gate", "up", "down", "look"),
}
MAX_NAMES_SHOWN = 12  # in an error message


@dataclass(frozen=True, kw_only=True)
class TargetModule:
    """A projection, or the rows of a fused one that the family stores as a separate matrix."""

    host: str  # path of the linear layer in the network
    name: str  # query, key, …; qkv if the family stores all three as one matrix
    covers: tuple[str, ...]  # the target names that select it
    rows: slice
    shape: tuple[int, int]
    theirs: str = ""  # path of the module in the family's files

    @property
    def path(self) -> str:
        """The path of the host with this module's name as the last part."""
        return f"{self.host.rpartition('.')[0]}.{self.name}"

    def matches(self, target: str) -> bool:
        """Return whether a target names this module by its path or the end of its path."""
        stem = self.host.rpartition(".")[0]
        paths = [f"{stem}.{name}" for name in (*self.covers, self.name)]
        return any(path == target or path.endswith(f".{target}") for path in paths)


def family_without_labels(config: ModelConfig) -> ModelFamily | None:
    """Return the family of a network, ignoring its labels."""
    defaults: dict[str, Any] = {field.name: field.default for field in fields(config)}
    return family_of(replace(config, **{name: defaults[name] for name in label_fields(config)}))


def label_fields(config: ModelConfig) -> dict[str, Any]:
    """Return the fields of a config that describe label heads."""
    names = [field.name for field in fields(config)]
    return {name: getattr(config, name) for name in names if "label" in name or name == "pooling"}


def target_modules(network: LanguageNetwork) -> list[TargetModule]:
    """List all projections inside the blocks of a network.

    >>> from firth.models.presets import preset
    >>> from firth.models.transformer import Transformer
    >>> [target.name for target in target_modules(Transformer(preset("bert-tiny").config))][:6]
    ['query', 'key', 'value', 'output', 'up', 'down']
    """
    family, found = family_without_labels(network.config), []
    for host, module in block_modules(network):
        if isinstance(module, nn.Linear):
            theirs = family.their_names(f"{host}.weight") if family is not None else []
            stored = [name.removesuffix(".weight") for name in theirs]
            found += _split_fused(host, module, stored)
    return found


def _split_fused(host: str, module: nn.Linear, stored: list[str]) -> list[TargetModule]:
    """Split a projection as the family does; `stored` are the names in its files, if any."""
    name = host.rpartition(".")[2]
    splits = module.splits if isinstance(module, FusedLinear) else (module.out_features,)
    parts = FUSED.get(name, ("gate", "up") if len(splits) > 1 else (name,))[: len(splits)]
    if len(stored) == 1:  # one matrix in the family's files, too
        splits, parts, covers = (module.out_features,), (name,), [parts]
    else:
        covers = [(part,) for part in parts]
    ends = [sum(splits[: i + 1]) for i in range(len(splits))]
    return [
        TargetModule(
            host=host,
            name=part,
            covers=covered,
            rows=slice(end - size, end),
            shape=(size, module.in_features),
            theirs=theirs,
        )
        for part, covered, size, end, theirs in zip(
            parts, covers, splits, ends, stored or [""] * len(splits), strict=True
        )
    ]


def select_targets(network: LanguageNetwork, targets: Iterable[str]) -> list[TargetModule]:
    """Return the projections that the targets name, in the network's order.

    >>> from firth.models.presets import preset
    >>> from firth.models.transformer import Transformer
    >>> network = Transformer(preset("bert-tiny").config)
    >>> [target.path for target in select_targets(network, ["value", "0.feed_forward.up"])]
    ['encoder.blocks.0.attention.value', 'encoder.blocks.0.feed_forward.up', \
'encoder.blocks.1.attention.value']
    >>> select_targets(network, ["q_proj"])
    Traceback (most recent call last):
    firth.utils.errors.UsageError: The network has no projection 'q_proj'; there are query, key, \
value, output, up, down, and the groups qkv, attention, feed_forward, all.
    """
    known, found = target_modules(network), set()
    for target in targets:
        matched = [
            i
            for i, module in enumerate(known)
            if any(module.matches(name) for name in GROUPS.get(target, (target,)))
        ]
        if not matched:
            names = list(dict.fromkeys(name for module in known for name in module.covers))
            raise UsageError(
                f"The network has no projection {target!r}; there are "
                f"{', '.join(names[:MAX_NAMES_SHOWN])}, and the groups {', '.join(GROUPS)}."
            )
        found.update(matched)
    return [known[i] for i in sorted(found)]
