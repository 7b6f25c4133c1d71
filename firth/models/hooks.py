"""Forward hooks of modules, which code that does not call the modules would leave out."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_modules


def has_hooks(module: nn.Module) -> bool:
    """Tell whether a module has forward hooks, as an adapter's host has; torch has no public test.

    Without these attributes a module counts as one with hooks, and its network is left to torch.
    """
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    return any(getattr(module, kind, True) for kind in kinds)


def has_global_hooks() -> bool:
    """Tell whether torch calls hooks for all modules; True if that cannot be known."""
    kinds = ("_global_forward_hooks", "_global_forward_pre_hooks")
    return any(getattr(torch_modules, kind, True) for kind in kinds)
