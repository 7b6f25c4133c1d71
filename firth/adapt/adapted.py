"""An adapter on a network: put on, switched, summed with others, merged, taken off again.

    apply(network, "lora:rank=16", name="a")    # what now requires a gradient is to be trained
    activate(network, {"a": 0.7, "b": 0.3})     # two that were trained, added up
    merge(network)                              # one plain network that computes the same
    remove(network, "a")                        # the network without it

With the last adapter gone, the network is what it was before the first, to the last bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from firth.adapt.changes import Change, hang, take_off
from firth.adapt.freeze import let_learn
from firth.adapt.table import Strategy, strategy
from firth.adapt.targets import family_without_labels, labels_of
from firth.errors import Misuse
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer, count_parameters


@dataclass(eq=False, kw_only=True)
class Adapted:
    """What one way of fine-tuning trains of a network."""

    network: Transformer
    name: str
    strategy: Strategy
    config: ModelConfig  # of the network it was made for, with the labels it learned
    heads: dict[str, nn.Module]  # that are trained with it
    changes: dict[str, Change] = field(default_factory=dict)  # by the path of their host
    opened: tuple[str, ...] = ()  # parameters of the network itself

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by its name in the network."""
        own = dict(self.network.named_parameters())
        hung = {
            f"{host}.{change.slot}.{self.name}.{key}": parameter
            for host, change in self.changes.items()
            for key, parameter in change.named_parameters()
        }
        tops = {
            f"heads.{head}.{key}": parameter
            for head, module in self.heads.items()
            for key, parameter in module.named_parameters()
        }
        return {name: own[name] for name in self.opened} | hung | tops

    @property
    def count(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    @property
    def share(self) -> float:
        """The same, as a share of all numbers of the network."""
        return self.count / count_parameters(self.network)


class Registry(dict[str, Adapted]):
    """The adapters on one network."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: dict[str, float] = {}  # of those that count at present
        self.heads: dict[str, nn.Module | None] = {}  # the base's, where adapters have their own
        self.config: ModelConfig | None = None  # the base's, where adapters have their own labels
        self.originals: dict[str, Tensor] = {}  # weights of the base, while adapters are merged

    @property
    def merged(self) -> bool:
        return bool(self.originals)


def adapters_on(network: Transformer) -> Registry:
    """The adapters that a network carries, by name."""
    registry: Registry = network.__dict__.setdefault("_adapters", Registry())
    return registry


def apply(
    network: Transformer,
    spec: str | Strategy,
    *,
    name: str = "default",
    heads: Iterable[str] = (),
    seed: int = 0,
) -> Adapted:
    """Prepare a network for one way of fine-tuning; only what that trains requires a gradient.

    `heads` are trained with it. An adapter's are copies: without it, the network has its own. An
    adapter leaves the language head, which pre-training has made, as it is.

    >>> from firth.models.presets import preset
    >>> network = Transformer(preset("bert-tiny").config, ["language"])
    >>> adapted = apply(network, "lora:rank=4")
    >>> adapted.count, [name for name in adapted.parameters][:2]
    (18432, ['encoder.blocks.0.attention.qkv.adapters.default.pairs.query.a', \
'encoder.blocks.0.attention.qkv.adapters.default.pairs.query.b'])
    """
    chosen = strategy(spec) if isinstance(spec, str) else spec
    registry, tops = adapters_on(network), _own_heads(network, heads)
    if chosen.row.opens is not None:
        if registry:
            raise Misuse(
                f"{chosen.name} trains the network itself, which carries adapters "
                f"({', '.join(registry)}); merge or remove them first."
            )
        opened = tuple(chosen.row.opens(network, chosen.options))
        let_learn(network, opened, tops)
        return Adapted(
            network=network,
            name=name,
            strategy=chosen,
            config=network.config,
            heads=tops,
            opened=opened,
        )
    assert chosen.row.hangs is not None
    with alone(network):
        changes = chosen.row.hangs(network, chosen.options, seed)
    copies = {
        head: deepcopy(registry.heads.get(head) or top)
        for head, top in tops.items()
        if head != "language"
    }
    return put_on(network, name, chosen, changes, copies)


def put_on(
    network: Transformer,
    name: str,
    chosen: Strategy,
    changes: dict[str, Change],
    heads: dict[str, nn.Module],
    config: ModelConfig | None = None,
) -> Adapted:
    """Hang the changes of an adapter onto a network, and let them alone count and learn."""
    registry = adapters_on(network)
    check_name(registry, name)
    for host, change in changes.items():
        hang(network.get_submodule(host), name, change)
    adapted = Adapted(
        network=network,
        name=name,
        strategy=chosen,
        config=config or network.config,
        heads=heads,
        changes=changes,
    )
    registry[name] = adapted
    there, registry.config = dict(network.heads.items()), registry.config or network.config
    for head in (*heads, "pooler"):
        registry.heads.setdefault(head, there.get(head))
    activate(network, name)
    let_learn(network, adapted.parameters)
    return adapted


def activate(network: Transformer, shares: str | Iterable[str] | Mapping[str, float]) -> None:
    """Let some adapters count, each fully or by its share, and no others.

    Heads and labels are those of the last that has some; without adapters, those of the network.
    """
    registry = adapters_on(network)
    _check_unmerged(registry)
    if isinstance(shares, str):
        shares = [shares]
    wanted = dict(shares) if isinstance(shares, Mapping) else dict.fromkeys(shares, 1.0)
    for name, share in wanted.items():
        if name not in registry:
            raise Misuse(f"There is no adapter {name!r}; there are {_listed(registry)}.")
        if share not in (0.0, 1.0) and not registry[name].strategy.row.sums:
            kind = registry[name].strategy.name
            raise Misuse(f"The adapter {name!r} is {kind}, which counts whole or not at all.")
    registry.shares = {name: share for name, share in wanted.items() if share}
    _weigh(registry, registry.shares)
    heads, config = dict(registry.heads), registry.config
    for adapted in (registry[name] for name in registry.shares):
        if not _reads_pooler(adapted):
            heads["pooler"] = None
        heads |= adapted.heads
        if adapted.heads and config is not None:
            config = replace(config, **labels_of(adapted.config))
    network.config = config or network.config
    for head, module in heads.items():
        if module is not None:
            network.heads[head] = module.to(network.tokens.weight.device).train(network.training)
        elif head in network.heads:
            del network.heads[head]


def _reads_pooler(adapted: Adapted) -> bool:
    """Whether the pooler of the base, if it has one, stands before an adapter's head."""
    config = adapted.config
    if not adapted.heads or not config.label_head:
        return True
    family = family_without_labels(config)
    row = family.task_heads.get(config.label_head) if family is not None else None
    return row is not None and row.pooler


def merge(network: Transformer, *, keep: bool = True) -> None:
    """Work the adapters that count into the weights, so that the network computes it by itself.

    With `keep`, what the weights were is kept for `unmerge`; without, the adapters are forgotten.
    """
    registry = adapters_on(network)
    _check_unmerged(registry)
    active = [registry[name] for name in registry.shares]
    for adapted in active:
        if not adapted.strategy.row.merges:
            raise Misuse(
                f"{adapted.strategy.name} adds what no weight of the network can hold: it cannot "
                "be merged, only kept beside it."
            )
    if len(active) > 1 and not all(adapted.strategy.row.sums for adapted in active):
        raise Misuse("Several adapters can be merged at once only where they are added up.")
    with torch.no_grad():
        for path, new in _merged(network, active).items():
            parameter = network.get_parameter(path)
            registry.originals[path] = parameter.detach().clone()
            parameter.copy_(new)
    for adapted in active if keep else registry.values():
        _take_all_off(adapted)
    if not keep:
        _forget(network)


def _merged(network: Transformer, active: list[Adapted]) -> dict[str, Tensor]:
    """The weights with what each adapter makes of them: what they add to the base, added up."""
    new: dict[str, Tensor] = {}
    for adapted in active:
        for host, change in adapted.changes.items():
            module = network.get_submodule(host)
            for key, value in change.merge(module).items():
                path, old = f"{host}.{key}", getattr(module, key)
                new[path] = value if path not in new else new[path] + (value - old)
    return new


def unmerge(network: Transformer) -> None:
    """Undo `merge`, to the last bit."""
    registry = adapters_on(network)
    with torch.no_grad():
        for path, original in registry.originals.items():
            network.get_parameter(path).copy_(original)
    if registry.merged:
        registry.originals = {}
        for name in registry.shares:
            for host, change in registry[name].changes.items():
                change.to(network.tokens.weight.device)  # where the network may have moved to
                hang(network.get_submodule(host), name, change)


def remove(network: Transformer, name: str) -> None:
    """Take an adapter off; with the last one gone, the network is what it was before the first."""
    registry = adapters_on(network)
    if name not in registry:
        raise Misuse(f"There is no adapter {name!r}; there are {_listed(registry)}.")
    unmerge(network)
    _take_all_off(registry.pop(name))
    activate(network, {key: share for key, share in registry.shares.items() if key != name})
    if not registry:
        _forget(network)


def _forget(network: Transformer) -> None:
    """Let the network be one like any other."""
    del network.__dict__["_adapters"]
    network.requires_grad_(True)


def _take_all_off(adapted: Adapted) -> None:
    for host, change in adapted.changes.items():
        take_off(adapted.network.get_submodule(host), adapted.name, change)


def _weigh(registry: Registry, shares: Mapping[str, float]) -> None:
    for name, adapted in registry.items():
        for change in adapted.changes.values():
            change.share = shares.get(name, 0.0)


@contextmanager
def alone(network: Transformer) -> Iterator[None]:
    """The network without its adapters for a while."""
    registry = adapters_on(network)
    _check_unmerged(registry)
    _weigh(registry, {})
    try:
        yield
    finally:
        _weigh(registry, registry.shares)


def _own_heads(network: Transformer, heads: Iterable[str]) -> dict[str, nn.Module]:
    for head in (names := list(heads)):
        if head not in network.heads:
            there = ", ".join(network.heads) or "none"
            raise Misuse(f"The network has no head {head!r}; there are {there}.")
    return {head: network.heads[head] for head in names}


def check_name(registry: Registry, name: str) -> None:
    """Names are parts of the names of parameters."""
    if not re.fullmatch(r"[\w-]{1,100}", name) or hasattr(nn.ModuleDict, name):
        raise Misuse(f"An adapter cannot be called {name!r}; take letters, digits, - and _.")
    if name in registry:
        raise Misuse(f"The network already has an adapter {name!r}; choose another name.")


def _check_unmerged(registry: Registry) -> None:
    if registry.merged:
        raise Misuse("Adapters are merged into the network; unmerge or remove them first.")


def _listed(registry: Registry) -> str:
    return ", ".join(registry) or "none"
