"""Apply, activate, combine, merge and remove adapters.

    apply(network, "lora:rank=16", name="a")    # only the adapter's parameters require gradients
    activate(network, {"a": 0.7, "b": 0.3})     # weighted sum of two adapters
    merge(network)                              # fold the active adapters into the weights
    remove(network, "a")                        # remove one adapter

After the last adapter is removed, the network is bitwise identical to the original.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from firth.adapt.freeze import set_trainable
from firth.adapt.injection import InjectedModule, attach, detach
from firth.adapt.registry import Strategy, parse_strategy
from firth.adapt.target_modules import family_without_labels, label_fields
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.models.transformer import Transformer, count_parameters
from firth.utils.errors import UsageError


@dataclass(eq=False)
class AppliedStrategy:
    """A fine-tuning strategy applied to a network, with its trainable parameters."""

    network: LanguageNetwork
    name: str
    strategy: Strategy
    config: ModelConfig  # of the network, with the labels of the trained heads
    heads: dict[str, nn.Module]  # heads trained together with the adapter
    modules: dict[str, InjectedModule] = field(default_factory=dict)  # by the path of their host
    unfrozen: tuple[str, ...] = ()  # names of the network's own parameters that are trained

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by their names in the network."""
        own = dict(self.network.named_parameters())
        injected = {
            f"{host}.{module.slot}.{self.name}.{key}": parameter
            for host, module in self.modules.items()
            for key, parameter in module.named_parameters()
        }
        of_heads = {
            f"heads.{head}.{key}": parameter
            for head, module in self.heads.items()
            for key, parameter in module.named_parameters()
        }
        return {name: own[name] for name in self.unfrozen} | injected | of_heads

    @property
    def trainable_parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    @property
    def trainable_fraction(self) -> float:
        """The number of trainable parameters divided by all parameters of the network."""
        return self.trainable_parameters / count_parameters(self.network)


class AdapterRegistry(dict[str, AppliedStrategy]):
    """The adapters on one network."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[str, float] = {}  # of those that count at present
        self.heads: dict[str, nn.Module | None] = {}  # the base model's; adapters may replace them
        self.config: ModelConfig | None = None  # the base model's; adapters may change the labels
        self.originals: dict[str, Tensor] = {}  # base weights, while adapters are merged

    @property
    def merged(self) -> bool:
        return bool(self.originals)


def get_adapters(network: LanguageNetwork) -> AdapterRegistry:
    """Return the adapters of a network, by name."""
    registry: AdapterRegistry = network.__dict__.setdefault("_adapters", AdapterRegistry())
    return registry


def apply(
    network: LanguageNetwork,
    spec: str | Strategy,
    *,
    name: str = "default",
    heads: Iterable[str] = (),
    seed: int = 0,
) -> AppliedStrategy:
    """Apply a fine-tuning strategy: only the parameters it trains require gradients afterwards.

    `heads` are trained as well. An adapter trains copies of them, so the network gets its own heads
    back when the adapter is removed. Adapters never train the pre-trained language model head.

    >>> from firth.models.presets import preset
    >>> network = Transformer(preset("bert-tiny").config, ["language"])
    >>> adapted = apply(network, "lora:rank=4")
    >>> adapted.trainable_parameters, [name for name in adapted.parameters][:2]
    (18432, ['encoder.blocks.0.attention.qkv.adapters.default.pairs.query.a', \
'encoder.blocks.0.attention.qkv.adapters.default.pairs.query.b'])
    """
    chosen = parse_strategy(spec) if isinstance(spec, str) else spec
    registry, trained_heads = get_adapters(network), _find_heads(network, heads)
    if chosen.row.unfreeze is not None:
        if registry:
            raise UsageError(
                f"{chosen.name} trains the network's own parameters, but the network has adapters "
                f"({', '.join(registry)}); merge or remove them first."
            )
        unfrozen = tuple(chosen.row.unfreeze(network, chosen.options))
        set_trainable(network, unfrozen, trained_heads)
        return AppliedStrategy(
            network, name, chosen, network.config, trained_heads, unfrozen=unfrozen
        )
    assert chosen.row.inject is not None
    if not isinstance(network, Transformer):
        raise UsageError(f"{chosen.name} adapts the blocks of a Transformer; use another strategy.")
    with adapters_disabled(network):
        modules = chosen.row.inject(network, chosen.options, seed)
    copies = {
        head: deepcopy(registry.heads.get(head) or module)
        for head, module in trained_heads.items()
        if head != "language"
    }
    return attach_adapter(network, name, chosen, modules, copies)


def attach_adapter(
    network: LanguageNetwork,
    name: str,
    chosen: Strategy,
    modules: dict[str, InjectedModule],
    heads: dict[str, nn.Module],
    config: ModelConfig | None = None,
) -> AppliedStrategy:
    """Attach an adapter to a network and make it the only active and trainable one."""
    registry = get_adapters(network)
    check_name(registry, name)
    for host, module in modules.items():
        attach(network.get_submodule(host), name, module)
    adapted = AppliedStrategy(network, name, chosen, config or network.config, heads, modules)
    registry[name] = adapted
    own_heads, registry.config = dict(network.heads.items()), registry.config or network.config
    for head in (*heads, "pooler"):
        registry.heads.setdefault(head, own_heads.get(head))
    activate(network, name)
    set_trainable(network, adapted.parameters)
    return adapted


def activate(network: LanguageNetwork, adapters: str | Iterable[str] | Mapping[str, float]) -> None:
    """Activate only these adapters, with weight 1 unless a mapping gives other weights.

    Heads and labels are those of the last active adapter that has some, else the network's own.
    """
    registry = get_adapters(network)
    _check_unmerged(registry)
    if isinstance(adapters, str):
        adapters = [adapters]
    weights = dict(adapters) if isinstance(adapters, Mapping) else dict.fromkeys(adapters, 1.0)
    for name, weight in weights.items():
        if name not in registry:
            raise UsageError(f"There is no adapter {name!r}; there are {_names(registry)}.")
        if weight not in (0.0, 1.0) and not registry[name].strategy.row.additive:
            kind = registry[name].strategy.name
            raise UsageError(
                f"The weight of the adapter {name!r} must be 0 or 1, because it is {kind}."
            )
    registry.weights = {name: weight for name, weight in weights.items() if weight}
    _set_weights(registry, registry.weights)
    heads, config = dict(registry.heads), registry.config
    for adapted in (registry[name] for name in registry.weights):
        if not _uses_pooler(adapted):
            heads["pooler"] = None
        heads |= adapted.heads
        if adapted.heads and config is not None:
            config = replace(config, **label_fields(adapted.config))
    network.config = config or network.config
    for head, module in heads.items():
        if module is not None:
            network.heads[head] = module.to(network.tokens.weight.device).train(network.training)
        elif head in network.heads:
            del network.heads[head]


def _uses_pooler(adapted: AppliedStrategy) -> bool:
    """Return whether an adapter's head takes the output of the base model's pooler, if any."""
    config = adapted.config
    if not adapted.heads or not config.label_head:
        return True
    family = family_without_labels(config)
    row = family.task_heads.get(config.label_head) if family is not None else None
    return row is not None and row.pooler


def merge(network: LanguageNetwork, *, keep: bool = True) -> None:
    """Merge the active adapters into the weights of the network.

    With `keep`, the original weights are kept for `unmerge`; otherwise the adapters are removed.
    """
    registry = get_adapters(network)
    _check_unmerged(registry)
    active = [registry[name] for name in registry.weights]
    for adapted in active:
        if adapted.modules and not adapted.strategy.row.mergeable:  # a probe is a head alone
            raise UsageError(
                f"{adapted.strategy.name} cannot be merged: it cannot be expressed in the weights "
                "of the network. `firth predict` and `firth.load` use it unmerged."
            )
    if len(active) > 1 and not all(adapted.strategy.row.additive for adapted in active):
        raise UsageError("Several adapters can be merged at once only if all are additive.")
    with torch.no_grad():
        for path, new in _merged_weights(network, active).items():
            parameter = network.get_parameter(path)
            registry.originals[path] = parameter.detach().clone()
            parameter.copy_(new)
    for adapted in active if keep else registry.values():
        _detach_all(adapted)
    if not keep:
        _clear(network)


def _merged_weights(network: LanguageNetwork, active: list[AppliedStrategy]) -> dict[str, Tensor]:
    """Return the base weights plus the sum of the adapters' updates, by name."""
    new: dict[str, Tensor] = {}
    for adapted in active:
        for path, injected in adapted.modules.items():
            host = network.get_submodule(path)
            for key, value in injected.merge(host).items():
                name, old = f"{path}.{key}", getattr(host, key)
                new[name] = value if name not in new else new[name] + (value - old)
    return new


def unmerge(network: LanguageNetwork) -> None:
    """Undo `merge`, bitwise."""
    registry = get_adapters(network)
    with torch.no_grad():
        for path, original in registry.originals.items():
            network.get_parameter(path).copy_(original)
    if registry.merged:
        registry.originals = {}
        for name in registry.weights:
            for host, module in registry[name].modules.items():
                module.to(network.tokens.weight.device)  # the network may have moved meanwhile
                attach(network.get_submodule(host), name, module)


def remove(network: LanguageNetwork, name: str) -> None:
    """Remove an adapter; without adapters the network is bitwise identical to the original."""
    registry = get_adapters(network)
    if name not in registry:
        raise UsageError(f"There is no adapter {name!r}; there are {_names(registry)}.")
    unmerge(network)
    _detach_all(registry.pop(name))
    activate(network, {key: weight for key, weight in registry.weights.items() if key != name})
    if not registry:
        _clear(network)


def _clear(network: LanguageNetwork) -> None:
    """Forget the adapters of a network; all its parameters require gradients again."""
    del network.__dict__["_adapters"]
    network.requires_grad_(True)


def _detach_all(adapted: AppliedStrategy) -> None:
    for host, module in adapted.modules.items():
        detach(adapted.network.get_submodule(host), adapted.name, module)


def _set_weights(registry: AdapterRegistry, weights: Mapping[str, float]) -> None:
    for name, adapted in registry.items():
        for module in adapted.modules.values():
            module.adapter_weight = weights.get(name, 0.0)


@contextmanager
def adapters_disabled(network: LanguageNetwork) -> Iterator[None]:
    """Deactivate all adapters inside the context."""
    registry = get_adapters(network)
    _check_unmerged(registry)
    _set_weights(registry, {})
    try:
        yield
    finally:
        _set_weights(registry, registry.weights)


def _find_heads(network: LanguageNetwork, heads: Iterable[str]) -> dict[str, nn.Module]:
    for head in (names := list(heads)):
        if head not in network.heads:
            known = ", ".join(network.heads) or "none"
            raise UsageError(f"The network has no head {head!r}; there are {known}.")
    return {head: network.heads[head] for head in names}


def check_name(registry: AdapterRegistry, name: str) -> None:
    """Check that a name is new and valid as a part of parameter names."""
    if not re.fullmatch(r"[\w-]{1,100}", name) or hasattr(nn.ModuleDict, name):
        raise UsageError(f"An adapter cannot be called {name!r}; use letters, digits, - and _.")
    if name in registry:
        raise UsageError(f"The network already has an adapter {name!r}; choose another name.")


def _check_unmerged(registry: AdapterRegistry) -> None:
    if registry.merged:
        raise UsageError("Adapters are merged into the network; unmerge or remove them first.")


def _names(registry: AdapterRegistry) -> str:
    return ", ".join(registry) or "none"


def without_adapters(network: Transformer) -> Transformer:
    """Return a network without adapter modules, sharing the same weights."""
    with torch.device("meta"):
        bare = Transformer(network.config, network.heads)
    state = network.state_dict()
    bare.load_state_dict({name: state[name] for name in bare.state_dict()}, assign=True)
    return bare
