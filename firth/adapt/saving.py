"""Save and load adapters, in PEFT's format if PEFT supports the adapter, else in Firth's own.

adapter_config.json, adapter_model.safetensors    PEFT's format
adapter.safetensors                               Firth's format
firth.json                                        in both: hash of the base model, model config,
                                                  labels, strategy
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from firth.adapt import peft
from firth.adapt.apply import (
    AppliedStrategy,
    adapters_disabled,
    attach_adapter,
    check_name,
    get_adapters,
)
from firth.adapt.injection import InjectedModule, base_parameters
from firth.adapt.prompt_tuning import PrefixKeyValues
from firth.adapt.registry import Strategy, strategy_from_options
from firth.formats.json_files import read_object
from firth.formats.safetensors import open_weights, write_weights
from firth.models.config import ModelConfig
from firth.models.heads import make_head
from firth.models.language_model import LanguageNetwork
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import InputError, MismatchError, UsageError, storage_errors
from firth.utils.files import write_json

ABOUT, WEIGHTS = "firth.json", "adapter.safetensors"


@dataclass(frozen=True)
class SavedAdapter:
    """The format in which an adapter was saved."""

    layout: str  # "peft", or "firth" if PEFT does not support the adapter
    why: str = ""  # why PEFT does not support it


def fingerprint(network: LanguageNetwork) -> str:
    """Compute the SHA-256 of a network's own weights, without heads and adapters.

    >>> from firth.models.presets import preset
    >>> network = Transformer(preset("bert-tiny").config)
    >>> before = fingerprint(network)
    >>> with torch.no_grad():
    ...     _ = network.tokens.weight[0, 0].add_(1.0)
    >>> len(before), before == fingerprint(network)
    (64, False)
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(base_parameters(network).items()):
        if not name.startswith("heads."):
            digest.update(f"{name} {parameter.dtype} {list(parameter.shape)}\n".encode())
            data = parameter.detach().cpu().contiguous().reshape(-1)
            digest.update(data.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_adapter(adapted: AppliedStrategy, path: str | Path, *, base: str = "") -> SavedAdapter:
    """Save an adapter; `base` is the name or path of its base model.

    The format is PEFT's if PEFT supports the adapter, else Firth's own; see the returned value.
    """
    folder, network, chosen = Path(path), adapted.network, adapted.strategy
    if chosen.row.unfreeze is not None and chosen.name != "probe":
        raise UsageError(f"{chosen.name} is not an adapter: save the whole model.")
    if get_adapters(network).originals:
        raise UsageError("The adapter is merged into the network; unmerge it before saving.")
    if folder.is_file():
        raise UsageError(f"{folder} is a file; an adapter is saved as a directory.")
    adapted = _without_projection(adapted)
    why = peft.unsupported_reason(adapted)
    saved = SavedAdapter("firth" if why else "peft", why)
    about = {
        "strategy": chosen.name,
        "options": asdict(adapted.strategy.options),
        "heads": list(adapted.heads),
        "base": {
            "name": base,
            "sha256": fingerprint(network),
            "dtype": str(network.tokens.weight.dtype).removeprefix("torch."),
        },
        "layout": saved.layout,
        "why": saved.why,
        "model": adapted.config.to_dict(),
    }
    tensors = named_tensors(adapted.modules, adapted.heads)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (WEIGHTS, peft.CONFIG, peft.WEIGHTS):
            (folder / stale).unlink(missing_ok=True)
        if saved.layout == "peft":
            write_weights(folder / peft.WEIGHTS, _to_peft(adapted, tensors))
            write_json(folder / peft.CONFIG, peft.peft_config(adapted, base))
        else:
            write_weights(folder / WEIGHTS, tensors)
        write_json(folder / ABOUT, about)
    return saved


def _without_projection(adapted: AppliedStrategy) -> AppliedStrategy:
    """Replace the MLP that computes a prefix during training by its output."""
    if not getattr(adapted.strategy.options, "projection", 0):
        return adapted
    modules = deepcopy(adapted.modules)
    for module in modules.values():
        assert isinstance(module, PrefixKeyValues)
        for states in (module.own, module.cross):
            if states is not None:
                states.fold()
    options = replace(adapted.strategy.options, projection=0)
    return replace(adapted, modules=modules, strategy=Strategy(adapted.strategy.name, options))


def named_tensors(
    modules: Mapping[str, InjectedModule], heads: Mapping[str, nn.Module]
) -> dict[str, Tensor]:
    """Return all tensors of an adapter, by names without the adapter's name."""
    injected = {
        f"{host}.{module.slot}.{key}": tensor
        for host, module in modules.items()
        for key, tensor in module.named_parameters()
    }
    of_heads = {
        f"heads.{head}.{key}": tensor
        for head, module in heads.items()
        for key, tensor in module.state_dict().items()
    }
    return injected | of_heads


def _to_peft(adapted: AppliedStrategy, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    network, chosen, named = adapted.network, adapted.strategy, {}
    for ours, (theirs, shape) in peft.tensor_names(network, adapted.modules, adapted.heads).items():
        tensor = tensors[ours].reshape(shape)
        if theirs == peft.TOKENS:
            tensor = peft.pack_virtual_tokens(network, chosen.name, tensor)
        named[peft.to_peft_name(network, chosen.row.peft, theirs)] = tensor
    return named


def adapter_base(path: Path) -> str | None:
    """Return the base model of the adapter in a directory; None if there is no adapter."""
    about, config = _read_json(path / ABOUT), _read_json(path / peft.CONFIG)
    if about is None and config is None:
        return None
    base = (about or {}).get("base")
    named = base.get("name") if isinstance(base, dict) else None
    named = named or (config or {}).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise InputError(f"The adapter in {path} does not name its base model.")
    return named


def load_adapter(
    network: Transformer, path: str | Path, *, name: str = "default"
) -> AppliedStrategy:
    """Load an adapter, in Firth's or PEFT's format, and make it the only active and trainable one.

    An adapter saved by Firth must match the hash of the base model; one saved by PEFT must match in
    names and shapes. A label head that the network lacks is created as its family defines it.
    """
    folder = Path(path)
    check_name(get_adapters(network), name)
    about = _read_json(folder / ABOUT)
    config = _read_json(folder / peft.CONFIG)
    if about is None and config is None:
        raise InputError(f"{folder} holds no adapter: there is neither {peft.CONFIG} nor {ABOUT}.")
    try:
        if about is not None:
            _check_base(network, about)
        if config is not None:
            parts = _read_peft(network, folder, config, about)
        else:
            parts = _read(network, folder, about or {})
    except (InputError, MismatchError) as error:
        raise type(error)(f"{folder}: {str(error).removesuffix('.')}.") from error
    except (UsageError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} does not describe an adapter ({error}).") from error
    return attach_adapter(network, name, *parts)


def _read_json(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if there is no such file."""
    return read_object(file) if file.is_file() else None


def _check_base(network: Transformer, about: Mapping[str, Any]) -> None:
    base, own = about["base"], str(network.tokens.weight.dtype).removeprefix("torch.")
    if base["sha256"] == fingerprint(network):
        return
    other = f", in {base['dtype']} instead of {own}" if base["dtype"] != own else ""
    raise MismatchError(
        f"it was trained on another base model ({base['name'] or 'without a name'}, SHA-256 "
        f"{base['sha256'][:12]}…{other})"
    )


Parts = tuple[Strategy, dict[str, InjectedModule], dict[str, nn.Module], ModelConfig]


def _read(network: Transformer, folder: Path, about: Mapping[str, Any]) -> Parts:
    """Read an adapter in Firth's format."""
    chosen = strategy_from_options(about["strategy"], about["options"])
    config = TransformerConfig.from_dict(about["model"])
    heads = {head: _empty_head(network, head, config) for head in about["heads"]}
    changes = _empty_changes(network, chosen)
    targets = named_tensors(changes, heads)
    expected = {name: (name, tuple(tensor.shape)) for name, tensor in targets.items()}
    _fill(targets, expected, open_weights(folder / WEIGHTS, verify=True))
    return chosen, changes, heads, config


def _read_peft(
    network: Transformer,
    folder: Path,
    config: Mapping[str, Any],
    about: Mapping[str, Any] | None,
) -> Parts:
    """Read an adapter in PEFT's format; `about` is given if Firth saved it."""
    file = folder / peft.WEIGHTS
    if not file.is_file() and (folder / peft.PICKLE).is_file():
        raise InputError(
            f"{peft.PICKLE} is a pickle file, which could run code when it is loaded; "
            "save the adapter as safetensors with PEFT first"
        )
    weights = open_weights(file, verify=True)
    stored = {full: weights[name] for full, name in peft.from_peft_names(network, weights).items()}
    shapes = {full: tuple(tensor.shape) for full, tensor in stored.items()}
    chosen = peft.parse_peft_config(network, config, shapes)
    model: ModelConfig = network.config
    if about is not None:
        chosen = strategy_from_options(about["strategy"], about["options"])
        model = TransformerConfig.from_dict(about["model"])
        heads = {head: _empty_head(network, head, model) for head in about["heads"]}
    else:
        model, new = peft.stored_labels(network, config, shapes)
        known = [] if new else peft.stored_heads(network, stored)
        heads = {head: deepcopy(network.heads[head]) for head in known}
        heads |= {head: _empty_head(network, head, model) for head in new}
        _check_whole(peft.tensor_names(network, {}, heads), stored)
        if chosen.name == "prompt" and peft.pools_prompt(heads, model):
            raise MismatchError("its head pools the virtual tokens, which is not supported")
    if peft.TOKENS in stored:
        rows = stored[peft.TOKENS]
        stored[peft.TOKENS] = peft.unpack_virtual_tokens(network, chosen.name, rows, config)
    changes = _empty_changes(network, chosen)
    _fill(named_tensors(changes, heads), peft.tensor_names(network, changes, heads), stored)
    return chosen, changes, heads, model


def _check_whole(
    expected: Mapping[str, tuple[str, tuple[int, ...]]], stored: Mapping[str, Tensor]
) -> None:
    for theirs, _ in expected.values():
        if theirs not in stored:
            raise MismatchError(
                f"it lacks {theirs}, a weight of its head; "
                "train it again with that module in modules_to_save"
            )


def _empty_changes(network: Transformer, chosen: Strategy) -> dict[str, InjectedModule]:
    if chosen.row.inject is None:  # only a head
        return {}
    with adapters_disabled(network):
        return chosen.row.inject(network, chosen.options, 0)


def _empty_head(network: LanguageNetwork, head: str, config: ModelConfig) -> nn.Module:
    with torch.device("meta"):
        module = make_head(head, config)
    like = network.tokens.weight
    return module.to_empty(device=like.device).to(like.dtype)


@torch.no_grad()
def _fill(
    targets: Mapping[str, Tensor],
    expected: Mapping[str, tuple[str, tuple[int, ...]]],
    stored: Mapping[str, Tensor],
) -> None:
    """Copy the stored tensors into an adapter; names and shapes must match exactly."""
    if not stored:
        raise MismatchError("it holds no weights")
    for found in sorted(set(stored) - {theirs for theirs, _ in expected.values()}):
        raise MismatchError(f"it holds {found}, which this network does not have")
    for ours, (theirs, shape) in expected.items():
        if theirs not in stored:
            raise MismatchError(f"it lacks {theirs}")
        tensor = stored[theirs]
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise MismatchError(
                f"{theirs} has shape {list(tensor.shape)}, but this network needs {list(shape)}"
            )
        targets[ours].copy_(tensor.reshape(targets[ours].shape))
