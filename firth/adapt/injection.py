"""Attach adapter modules to a network with forward hooks, and detach them again.

The network's own modules and parameters are not changed. An adapter module is a child of the module
it acts on (its host), under the name of its adapter:

    encoder.blocks.0.attention.qkv.adapters.NAME     changes the host's input or output
    encoder.prefix.NAME                              keys and values before every sequence
    encoder.prompt.NAME                              embeddings before every sequence
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from firth.models.initialization import parameter_seed


class InjectionPoint(nn.ModuleDict):
    """The adapter modules of one host, by the names of their adapters."""

    handles: tuple[RemovableHandle, ...] = ()

    def active(self) -> Iterator[Any]:
        """Yield the modules of the active adapters."""
        return (module for module in self.values() if module.adapter_weight)


class InjectedModule(nn.Module):
    """Base class of the modules that an adapter attaches to a host."""

    slot: ClassVar[str] = "adapters"  # the host's attribute for its injection point
    point: ClassVar[type[InjectionPoint]] = InjectionPoint
    adapter_weight: float = 1.0  # in a weighted sum of adapters; 0: inactive

    def before(self, host: nn.Module, x: Tensor) -> Tensor:
        """Change the host's input."""
        return x

    def after(self, host: nn.Module, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        """Change the host's output `out`; `plain` is the output before any adapter."""
        return out

    def merge(self, host: nn.Module) -> dict[str, Tensor]:
        """Return the host's parameters with this module merged into them."""
        raise NotImplementedError


def attach(host: nn.Module, name: str, module: InjectedModule) -> None:
    """Attach a module to its host."""
    point = getattr(host, module.slot, None)
    if point is None:
        point = module.point()
        setattr(host, module.slot, point)
        if module.slot == InjectedModule.slot:
            hooks = host.register_forward_pre_hook(_before), host.register_forward_hook(_after)
            point.handles = hooks
    point[name] = module.train(host.training)


def detach(host: nn.Module, name: str, module: InjectedModule) -> None:
    """Undo `attach`; after the last module, also remove the hooks."""
    point = getattr(host, module.slot)
    del point[name]
    if not len(point):
        for handle in point.handles:
            handle.remove()
        setattr(host, module.slot, None)


def _before(host: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *others = inputs
    for module in host.adapters.active():
        x = module.before(host, x)
    return (x, *others)


def _after(host: Any, inputs: tuple[Any, ...], plain: Tensor) -> Tensor:
    out = plain
    for module in host.adapters.active():
        out = module.after(host, inputs[0], out, plain)
    return out


def base_modules(network: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the network's own modules, without adapters."""
    yield path, network
    for name, child in network.named_children():
        if not isinstance(child, InjectionPoint):
            yield from base_modules(child, f"{path}.{name}" if path else name)


def base_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the network's own parameters, without adapters."""
    return {
        f"{path}.{name}" if path else name: parameter
        for path, module in base_modules(network)
        for name, parameter in module.named_parameters(recurse=False)
    }


def block_modules(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the network's own modules inside transformer blocks."""
    return ((path, module) for path, module in base_modules(network) if ".blocks." in path)


def new_parameter(values: Tensor, like: Tensor) -> nn.Parameter:
    """Create a parameter on the device of `like`, in fp32 or higher precision."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return nn.Parameter(values.to(device=like.device, dtype=dtype))


def parameter_generator(name: str, seed: int) -> torch.Generator:
    """Return a generator for one parameter, seeded by its name and the seed alone."""
    return torch.Generator().manual_seed(parameter_seed(name, seed))
