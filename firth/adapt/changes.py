"""How something new is hung onto a network, and taken off again without a trace.

The modules of a network and their parameters stay what they are. A change is a module of its own,
which hangs at one place of the network, under the name of its adapter:

    encoder.blocks.0.attention.qkv.adapters.NAME     acts on what goes in or comes out there
    encoder.prefix.NAME                              keys and values before every sequence
    encoder.prompt.NAME                              vectors before every sequence
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from firth.models.initial import seed_of
from firth.models.transformer import Transformer


class Place(nn.ModuleDict):
    """The changes at one place of a network, by the names of their adapters."""

    handles: tuple[RemovableHandle, ...] = ()

    def active(self) -> Iterator[Any]:
        """Those that count at present."""
        return (change for change in self.values() if change.share)


class Change(nn.Module):
    """What an adapter does at one place; a subclass says what."""

    slot: ClassVar[str] = "adapters"  # the attribute it hangs under
    place: ClassVar[type[Place]] = Place
    share: float = 1.0  # how much of it counts; 0: nothing, as if it were not there

    def before(self, host: nn.Module, x: Tensor) -> Tensor:
        """What goes into the host instead of x."""
        return x

    def after(self, host: nn.Module, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        """What comes out of it; `plain` is what the host itself gave, before other changes."""
        return out

    def merge(self, host: nn.Module) -> dict[str, Tensor]:
        """What the host's parameters become when the change is worked into them."""
        raise NotImplementedError


def hang(host: nn.Module, name: str, change: Change) -> None:
    """Hang a change onto its host."""
    place = getattr(host, change.slot, None)
    if place is None:
        place = change.place()
        setattr(host, change.slot, place)
        if change.slot == Change.slot:
            hooks = host.register_forward_pre_hook(_before), host.register_forward_hook(_after)
            place.handles = hooks
    place[name] = change.train(host.training)


def take_off(host: nn.Module, name: str, change: Change) -> None:
    """Undo `hang`: with the last change gone, nothing is left of it."""
    place = getattr(host, change.slot)
    del place[name]
    if not len(place):
        for handle in place.handles:
            handle.remove()
        setattr(host, change.slot, None)


def _before(host: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *others = inputs
    for change in host.adapters.active():
        x = change.before(host, x)
    return (x, *others)


def _after(host: Any, inputs: tuple[Any, ...], plain: Tensor) -> Tensor:
    out = plain
    for change in host.adapters.active():
        out = change.after(host, inputs[0], out, plain)
    return out


def base_modules(network: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules of the network itself, without what hangs on it."""
    yield path, network
    for name, child in network.named_children():
        if not isinstance(child, Place):
            yield from base_modules(child, f"{path}.{name}" if path else name)


def base_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of the network itself."""
    return {
        f"{path}.{name}" if path else name: parameter
        for path, module in base_modules(network)
        for name, parameter in module.named_parameters(recurse=False)
    }


def blocks_of(network: Transformer) -> Iterator[tuple[str, nn.Module]]:
    """The modules inside the blocks of the network."""
    return ((path, module) for path, module in base_modules(network) if ".blocks." in path)


def parameter(values: Tensor, like: Tensor) -> nn.Parameter:
    """Something new to train: where the old is, in single precision or better."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return nn.Parameter(values.to(device=like.device, dtype=dtype))


def draws(name: str, seed: int) -> torch.Generator:
    """The randomness of one parameter, which depends on nothing but its name and the seed."""
    return torch.Generator().manual_seed(seed_of(name, seed))
