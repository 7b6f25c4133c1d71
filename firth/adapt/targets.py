"""The projections of a network by name, in the pieces in which its family stores them.

Query, key and value are one matrix here. BERT stores three, GPT-2 one: an adapter follows the
family, so that its files are those that others write for the same model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn

from firth.adapt.changes import blocks_of
from firth.errors import Misuse
from firth.models.config import ModelConfig
from firth.models.formats.directory import family_of
from firth.models.formats.family import Family
from firth.models.layers import Fused
from firth.models.transformer import Transformer

FUSED = {"qkv": ("query", "key", "value"), "kv": ("key", "value")}
GROUPS = {
    "qkv": ("query", "key", "value"),
    "attention": ("query", "key", "value", "output"),
    "feed_forward": ("gate", "up", "down"),
    "all": ("query", "key", "value", "output", "gate", "up", "down", "look"),
}
SHOWN = 12  # names in a message


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some rows of a projection: all of them, or those that are stored as one matrix."""

    host: str  # the projection's path in the network
    name: str  # of the piece: query; qkv, where all three are one
    covers: tuple[str, ...]  # the names that ask for it
    rows: slice
    shape: tuple[int, int]
    theirs: str = ""  # the path of the module that the family stores it as

    @property
    def path(self) -> str:
        """Where it is found: the path of the host, the name of the piece in place of the last."""
        return f"{self.host.rpartition('.')[0]}.{self.name}"

    def answers(self, target: str) -> bool:
        """Whether a target means this piece: by its path, or by the end of it."""
        stem = self.host.rpartition(".")[0]
        paths = [f"{stem}.{name}" for name in (*self.covers, self.name)]
        return any(path == target or path.endswith(f".{target}") for path in paths)

    def of(self, parameter: Tensor) -> Tensor:
        """The rows of the host's weight or bias."""
        return parameter[self.rows]


def family_without_labels(config: ModelConfig) -> Family | None:
    """The family of a network, whatever its labels are."""
    usual: dict[str, Any] = {field.name: field.default for field in fields(config)}
    return family_of(replace(config, **{name: usual[name] for name in labels_of(config)}))


def labels_of(config: ModelConfig) -> dict[str, Any]:
    """What a configuration says of labels."""
    names = [field.name for field in fields(config)]
    return {name: getattr(config, name) for name in names if "label" in name or name == "pooling"}


def pieces(network: Transformer) -> list[Piece]:
    """All projections inside the blocks of a network.

    >>> from firth.models.presets import preset
    >>> [piece.name for piece in pieces(Transformer(preset("bert-tiny").config))][:6]
    ['query', 'key', 'value', 'output', 'up', 'down']
    """
    family, found = family_without_labels(network.config), []
    for host, module in blocks_of(network):
        if isinstance(module, nn.Linear):
            theirs = family.their_names(f"{host}.weight") if family is not None else []
            stored = [name.removesuffix(".weight") for name in theirs]
            found += _cut(host, module, stored)
    return found


def _cut(host: str, module: nn.Linear, stored: list[str]) -> list[Piece]:
    """The pieces of one projection; `stored`: what the family calls them, if there is one."""
    name = host.rpartition(".")[2]
    splits = module.splits if isinstance(module, Fused) else (module.out_features,)
    parts = FUSED.get(name, ("gate", "up") if len(splits) > 1 else (name,))[: len(splits)]
    if len(stored) == 1:  # they are one matrix there, too
        splits, parts, covers = (module.out_features,), (name,), [parts]
    else:
        covers = [(part,) for part in parts]
    ends = [sum(splits[: i + 1]) for i in range(len(splits))]
    return [
        Piece(
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


def chosen(network: Transformer, targets: Iterable[str]) -> list[Piece]:
    """The pieces that some targets name, in the network's order.

    >>> from firth.models.presets import preset
    >>> network = Transformer(preset("bert-tiny").config)
    >>> [piece.path for piece in chosen(network, ["value", "0.feed_forward.up"])]
    ['encoder.blocks.0.attention.value', 'encoder.blocks.0.feed_forward.up', \
'encoder.blocks.1.attention.value']
    >>> chosen(network, ["q_proj"])
    Traceback (most recent call last):
    firth.errors.Misuse: Nothing in this network is called 'q_proj'; there are query, key, value, \
output, up, down, and qkv, attention, feed_forward, all for several of them.
    """
    known, found = pieces(network), set()
    for target in targets:
        matched = [
            i
            for i, piece in enumerate(known)
            if any(piece.answers(name) for name in GROUPS.get(target, (target,)))
        ]
        if not matched:
            names = list(dict.fromkeys(name for piece in known for name in piece.covers))
            raise Misuse(
                f"Nothing in this network is called {target!r}; there are "
                f"{', '.join(names[:SHOWN])}, and {', '.join(GROUPS)} for several of them."
            )
        found.update(matched)
    return [known[i] for i in sorted(found)]
