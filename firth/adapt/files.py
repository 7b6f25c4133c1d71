"""Adapters in directories: as PEFT lays them out where it can, otherwise in a layout of our own.

adapter_config.json, adapter_model.safetensors    PEFT's
adapter.safetensors                               ours, for what PEFT cannot express
firth.json                                        beside either: the base by its hash, the shape
                                                  and the labels of the network, the strategy
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from firth.adapt import peft
from firth.adapt.adapted import Adapted, adapters_on, alone, check_name, put_on
from firth.adapt.changes import Change, base_parameters
from firth.adapt.prompts import Pasts
from firth.adapt.table import Strategy, from_options
from firth.errors import InputError, MismatchError, Misuse, storage_errors
from firth.files import write_json
from firth.models.config import ModelConfig
from firth.models.formats.weights import open_weights, write_weights
from firth.models.heads import make_head
from firth.models.transformer import Transformer

ABOUT, WEIGHTS = "firth.json", "adapter.safetensors"
MOST = 10_000_000  # bytes of a description


@dataclass(frozen=True)
class Saved:
    """How an adapter was written."""

    layout: str  # "peft", or "firth" where PEFT cannot express it
    why: str = ""  # it cannot


def fingerprint(network: Transformer) -> str:
    """The SHA-256 of a network's own weights, without heads and without what hangs on it.

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


def save_adapter(adapted: Adapted, path: str | Path, *, base: str = "") -> Saved:
    """Write an adapter; `base` is the name of the model it belongs to, for people and for PEFT.

    The layout is PEFT's wherever PEFT can express the adapter; what is returned says which it is.
    """
    folder, network, chosen = Path(path), adapted.network, adapted.strategy
    if chosen.row.opens is not None and chosen.name != "probe":
        raise Misuse(f"{chosen.name} trains the network itself: save the whole model.")
    if adapters_on(network).originals:
        raise Misuse("The adapter is merged into the network; unmerge it before it is saved.")
    if folder.is_file():
        raise Misuse(f"{folder} is a file; an adapter needs a directory.")
    adapted = _folded(adapted)
    saved = Saved("firth", why) if (why := peft.obstacle(adapted)) else Saved("peft")
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
    tensors = named_tensors(adapted.changes, adapted.heads)
    with storage_errors(folder, "Free some space or name another place."):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (WEIGHTS, peft.CONFIG, peft.WEIGHTS):
            (folder / stale).unlink(missing_ok=True)
        if saved.layout == "peft":
            write_weights(folder / peft.WEIGHTS, _in_peft(adapted, tensors))
            write_json(folder / peft.CONFIG, peft.describe(adapted, base))
        else:
            write_weights(folder / WEIGHTS, tensors)
        write_json(folder / ABOUT, about)
    return saved


def _folded(adapted: Adapted) -> Adapted:
    """The adapter without what served only to learn it: the layers that make a prefix."""
    if not getattr(adapted.strategy.options, "projection", 0):
        return adapted
    changes = deepcopy(adapted.changes)
    for change in changes.values():
        assert isinstance(change, Pasts)
        for states in (change.own, change.cross):
            if states is not None:
                states.fold()
    options = replace(adapted.strategy.options, projection=0)
    return replace(adapted, changes=changes, strategy=Strategy(adapted.strategy.name, options))


def named_tensors(
    changes: Mapping[str, Change], heads: Mapping[str, nn.Module]
) -> dict[str, Tensor]:
    """Everything an adapter consists of, by names without the adapter's own."""
    hung = {
        f"{host}.{change.slot}.{key}": tensor
        for host, change in changes.items()
        for key, tensor in change.named_parameters()
    }
    tops = {
        f"heads.{head}.{key}": tensor
        for head, module in heads.items()
        for key, tensor in module.state_dict().items()
    }
    return hung | tops


def _in_peft(adapted: Adapted, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    network, chosen, named = adapted.network, adapted.strategy, {}
    for ours, (theirs, shape) in peft.names(network, adapted.changes, adapted.heads).items():
        tensor = tensors[ours].reshape(shape)
        if theirs == peft.TOKENS:
            tensor = peft.pack(network, chosen.name, tensor)
        named[peft.outward(network, chosen.row.peft, theirs)] = tensor
    return named


def base_of(path: Path) -> str | None:
    """The name of the model an adapter belongs to; None when there is no adapter in a place."""
    about, config = _read_json(path / ABOUT), _read_json(path / peft.CONFIG)
    if about is None and config is None:
        return None
    base = (about or {}).get("base")
    named = base.get("name") if isinstance(base, dict) else None
    named = named or (config or {}).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise InputError(f"{path} is an adapter that does not name the model it belongs to.")
    return named


def load_adapter(network: Transformer, path: str | Path, *, name: str = "default") -> Adapted:
    """Open an adapter, ours or PEFT's, and put it on a network; it alone then counts and learns.

    One that names its base by hash is put on no other. Of one that PEFT made, names and shapes
    must fit; a head for labels that the network has not is made as its family has it.
    """
    folder = Path(path)
    check_name(adapters_on(network), name)
    about = _read_json(folder / ABOUT)
    config = _read_json(folder / peft.CONFIG)
    if about is None and config is None:
        raise InputError(f"{folder} holds no adapter: neither {peft.CONFIG} nor {ABOUT} is in it.")
    try:
        if about is not None:
            _check_base(network, about)
        if config is not None:
            parts = _read_peft(network, folder, config, about)
        else:
            parts = _read(network, folder, about or {})
    except (InputError, MismatchError) as error:
        raise type(error)(f"{folder}: {str(error).removesuffix('.')}.") from error
    except (Misuse, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} does not describe an adapter ({error}).") from error
    return put_on(network, name, *parts)


def _read_json(file: Path) -> dict[str, Any] | None:
    """What a description says; None when there is none."""
    if not file.is_file():
        return None
    try:
        if file.stat().st_size > MOST:
            raise ValueError("it is too large")
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{file} cannot be read as JSON ({why}).") from error
    if not isinstance(values, dict):
        raise InputError(f"{file} does not describe an adapter.")
    return values


def _check_base(network: Transformer, about: Mapping[str, Any]) -> None:
    base, own = about["base"], str(network.tokens.weight.dtype).removeprefix("torch.")
    if base["sha256"] == fingerprint(network):
        return
    other = f", in {base['dtype']} and not in {own}" if base["dtype"] != own else ""
    raise MismatchError(
        f"it was made for another base ({base['name'] or 'without a name'}, SHA-256 "
        f"{base['sha256'][:12]}…{other}) and means nothing on this one"
    )


Parts = tuple[Strategy, dict[str, Change], dict[str, nn.Module], ModelConfig]


def _read(network: Transformer, folder: Path, about: Mapping[str, Any]) -> Parts:
    """An adapter in our own layout."""
    chosen = from_options(about["strategy"], about["options"])
    config = ModelConfig.from_dict(about["model"])
    heads = {head: _empty_head(network, head, config) for head in about["heads"]}
    changes = _empty_changes(network, chosen)
    targets = named_tensors(changes, heads)
    expected = {name: (name, tuple(tensor.shape)) for name, tensor in targets.items()}
    _fill(targets, expected, open_weights(folder / WEIGHTS))
    return chosen, changes, heads, config


def _read_peft(
    network: Transformer, folder: Path, config: Mapping[str, Any], about: Mapping[str, Any] | None
) -> Parts:
    """An adapter in PEFT's layout; `about` is there if it was written here."""
    file = folder / peft.WEIGHTS
    if not file.is_file() and (folder / peft.PICKLE).is_file():
        raise InputError(
            f"{peft.PICKLE} is a pickle file, which can run code when it is read and is not read "
            "here; save the adapter as safetensors with PEFT first"
        )
    weights = open_weights(file)
    stored = {full: weights[name] for full, name in peft.inward(network, weights).items()}
    shapes = {full: tuple(tensor.shape) for full, tensor in stored.items()}
    chosen, model = peft.understand(network, config, shapes), network.config
    if about is not None:
        chosen = from_options(about["strategy"], about["options"])
        model = ModelConfig.from_dict(about["model"])
        heads = {head: _empty_head(network, head, model) for head in about["heads"]}
    else:
        model, new = peft.labels_in(network, config, shapes)
        known = [] if new else peft.heads_in(network, stored)
        heads = {head: deepcopy(network.heads[head]) for head in known}
        heads |= {head: _empty_head(network, head, model) for head in new}
        _check_whole(peft.names(network, {}, heads), stored)
        if chosen.name == "prompt" and peft.pools_prompt(heads, model):
            raise MismatchError("its head classifies what became of the prompt, not of the text")
    if peft.TOKENS in stored:
        rows = stored[peft.TOKENS]
        stored[peft.TOKENS] = peft.unpack(network, chosen.name, rows, config)
    changes = _empty_changes(network, chosen)
    _fill(named_tensors(changes, heads), peft.names(network, changes, heads), stored)
    return chosen, changes, heads, model


def _check_whole(
    expected: Mapping[str, tuple[str, tuple[int, ...]]], stored: Mapping[str, Tensor]
) -> None:
    for theirs, _ in expected.values():
        if theirs not in stored:
            raise MismatchError(
                f"it lacks {theirs}, a part of its head that neither the base has nor PEFT has "
                "saved; train it again with the name of that part in modules_to_save"
            )


def _empty_changes(network: Transformer, chosen: Strategy) -> dict[str, Change]:
    if chosen.row.hangs is None:  # a head alone
        return {}
    with alone(network):
        return chosen.row.hangs(network, chosen.options, 0)


def _empty_head(network: Transformer, head: str, config: ModelConfig) -> nn.Module:
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
    """Copy what a file holds into the tensors of an adapter: all of it, and nothing else."""
    if not stored:
        raise MismatchError("it holds no weights")
    for found in sorted(set(stored) - {theirs for theirs, _ in expected.values()}):
        raise MismatchError(f"it holds {found}, which has no place in this network")
    for ours, (theirs, shape) in expected.items():
        if theirs not in stored:
            raise MismatchError(f"it lacks {theirs}")
        tensor = stored[theirs]
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise MismatchError(
                f"{theirs} has the shape {list(tensor.shape)}, but this network needs {list(shape)}"
            )
        targets[ours].copy_(tensor.reshape(targets[ours].shape))
