"""Load and save models as Hugging Face directories: `config.json` and `model.safetensors`.

A network whose architecture a Hugging Face family has is saved in that family's format. Every other
network has the `model_type` "firth": the same two files, with the names of this package.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from firth.formats.huggingface.albert import ALBERT, REMBERT
from firth.formats.huggingface.bart import BART, MBART
from firth.formats.huggingface.bert import BERT, ELECTRA, ROBERTA, XLM_ROBERTA
from firth.formats.huggingface.deberta import DEBERTA
from firth.formats.huggingface.distilbert import DISTILBERT
from firth.formats.huggingface.family import ModelFamily
from firth.formats.huggingface.gemma import GEMMA3
from firth.formats.huggingface.generation_config import (
    GENERATION_CONFIG,
    read_generation_config,
    with_special_tokens,
)
from firth.formats.huggingface.gpt import GPT1, GPT2
from firth.formats.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from firth.formats.huggingface.mobilebert import MOBILEBERT, MOBILEBERT_POOLED
from firth.formats.huggingface.modernbert import MODERNBERT, MODERNBERT_DECODER
from firth.formats.huggingface.mpnet import MPNET
from firth.formats.huggingface.t5 import MT5, MT5_GATED, T5, T5_ENCODERS, T5_GATED
from firth.formats.huggingface.xlm import XLM
from firth.formats.json_files import read_json
from firth.formats.safetensors import open_weights, write_weights
from firth.models.config import ModelConfig
from firth.models.heads import HEADS
from firth.models.label_heads import LABEL_HEADS, label_modules
from firth.models.language_model import LanguageNetwork
from firth.models.layers import FusedLinear
from firth.models.networks import build_network, config_class, network_name
from firth.models.transformer_config import TransformerConfig, require_transformer_config
from firth.utils.errors import InputError, MismatchError
from firth.utils.files import write_json

FAMILIES: tuple[ModelFamily, ...] = (
    *(BERT, ROBERTA, XLM_ROBERTA, ELECTRA, DISTILBERT, ALBERT, REMBERT),
    *(DEBERTA, MOBILEBERT, MOBILEBERT_POOLED, MPNET, XLM, MODERNBERT, MODERNBERT_DECODER),
    *(GPT1, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3),
    *(T5, T5_GATED, MT5, MT5_GATED, *T5_ENCODERS, BART, MBART),
)
NATIVE, TRANSFORMER = "firth", "transformer"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_NAMES_SHOWN = 4  # in an error message
LOGGER = logging.getLogger("firth")


def family_of(config: ModelConfig, heads: Iterable[str] = ()) -> ModelFamily | None:
    """Return the family that has this architecture and these heads, if there is one.

    >>> from firth.models.presets import preset
    >>> family_of(preset("bert-base").config).name
    'bert'
    """
    if not isinstance(config, TransformerConfig):
        return None
    own_first = sorted(FAMILIES, key=lambda family: family.name != config.family)
    names = tuple(heads)
    fitting = (family for family in own_first if family.has(names) and family.fits(config, names))
    return next(fitting, None)


def add_label_head(
    config: ModelConfig, head: str, labels: Iterable[str] = (), label_type: str = "one"
) -> tuple[ModelConfig, list[str]]:
    """Add a label head to a config, as its family defines it; return the config and the heads.

    >>> from firth.models.presets import preset
    >>> config, heads = add_label_head(preset("bert-base").config, "classify", ["bad", "good"])
    >>> config.labels, heads
    (('bad', 'good'), ['pooler', 'classify'])
    """
    pooling = {"encoder": config.pooling, "decoder": "last", "encoder-decoder": "mean"}
    reads_all = config.is_bidirectional and not config.has_encoder  # ELMo
    defaults: dict[str, Any] = {"pooling": "mean" if reads_all else pooling[config.architecture]}
    bare = replace(config, label_head="", labels=(), label_input_layer=None, label_layer_mix=False)
    family = family_of(bare)
    row = family.task_heads.get(head) if family is not None else None
    values = {**defaults, **(row.shape if row is not None else {})}
    heads = ["pooler", head] if row is not None and row.pooler else [head]
    values |= {"label_head": head, "labels": tuple(labels), "label_type": label_type}
    return replace(bare, **values), heads


def nameable_heads(config: ModelConfig, heads: Iterable[str]) -> list[str]:
    """Return the heads that the family of a config has names for; all, if it has no family."""
    family = family_of(config)
    return [head for head in heads if family is None or family.has([head])]


def saved_heads(config: ModelConfig, heads: Iterable[str]) -> tuple[str, ...]:
    """Return the heads to save: only those that the labels need, if a family has exactly these.

    A base model's language head stays beside the label head of an adapter merged into it:

    >>> from firth.models.presets import preset
    >>> config, heads = add_label_head(preset("bert-base").config, "classify", ["bad", "good"])
    >>> saved_heads(config, ["language", *heads])
    ('pooler', 'classify')
    """
    every = tuple(heads)
    used = tuple(head for head in every if head in label_modules(config))
    return used if config.label_head in used and family_of(config, used) is not None else every


def read_config(path: Path) -> tuple[ModelConfig, ModelFamily | None]:
    """Read the config in a directory, and its family (None: Firth's own format)."""
    file = path / CONFIG
    if not path.is_dir():
        raise InputError(f"{path} is not a directory with a model.")
    if not file.is_file():
        unfinished = (path / "checkpoints").is_dir()
        advice = " Its run was interrupted: resume it." if unfinished else ""
        raise InputError(f"{path} holds no model: there is no {CONFIG} in it.{advice}")
    values = read_json(file)
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError(f"{file} has no model_type.")
    try:
        config, family = _config(values)
        if config.has_decoder:
            theirs = read_generation_config(path)
            file = path / GENERATION_CONFIG if theirs else file
            config = with_special_tokens(config, theirs or values)
        return config, family
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{file} has an invalid value ({error!r}).") from error


def _config(values: dict[str, Any]) -> tuple[ModelConfig, ModelFamily | None]:
    kind = values["model_type"]
    if kind == NATIVE:
        if not isinstance(values.get("model"), dict):
            raise InputError('the config of a "firth" model must be under "model".')
        own = config_class(values.get("network", TRANSFORMER))
        return own.from_dict(values["model"]), None
    families = [family for family in FAMILIES if family.name == kind]
    if not families:
        known = ", ".join(dict.fromkeys(family.name for family in FAMILIES))
        raise InputError(f"the model_type {kind!r} is not supported; known are {known}.")
    # A model_type may have two variants (T5, plain and gated): take the one that round-trips.
    configs, errors = [], []
    for family in families:
        try:
            configs.append((family.config(values), family))
        except InputError as error:
            errors.append(error)
    if not configs:
        raise errors[0]
    return next((pair for pair in configs if pair[1].fits(pair[0])), configs[0])


def read_network(
    path: Path, *, dtype: torch.dtype | None = None, verify: bool = False
) -> LanguageNetwork:
    """Load the network in a directory; weights stay memory-mapped where possible.

    With `verify`, compare files written by Firth with their checksums.
    """
    config, family = read_config(path)
    _report_unknown_ids(path, config)
    source = WeightSource(open_weights(path, verify=verify), path / WEIGHTS)
    return network_with_weights(config, family, source, dtype)


def _report_unknown_ids(path: Path, config: ModelConfig) -> None:
    """Log a note on special tokens outside the vocabulary, which the config ignores."""
    values, size = read_json(path / CONFIG), config.vocab_size
    nested = values.get("model")
    values = {**(nested if isinstance(nested, dict) else values), **read_generation_config(path)}
    unknown = {
        name: id
        for name, ids in values.items()
        for id in (ids if isinstance(ids, list) else [ids])
        if name.endswith("_token_id") and isinstance(id, int) and not 0 <= id < size
    }
    if unknown:
        ids = ", ".join(f"{name} {id}" for name, id in unknown.items())
        file = path / CONFIG
        LOGGER.warning("%s: outside the vocabulary of %s tokens, ignored: %s.", file, size, ids)


class TensorStore(Protocol):
    """Named tensors in a file of any format."""

    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> Tensor: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> torch.dtype: ...
    def joined(self, names: Sequence[str]) -> Tensor | None: ...
    def copy_into(self, name: str, destination: Tensor) -> None: ...


@dataclass(frozen=True)
class WeightSource:
    """Weights, their file, and the name of the config that describes them, for error messages."""

    weights: TensorStore
    file: Path
    described: str = CONFIG


def network_with_weights(
    config: ModelConfig,
    family: ModelFamily | None,
    source: WeightSource,
    dtype: torch.dtype | None = None,
) -> LanguageNetwork:
    """Build a network of this config with the weights of a file in the family's names."""
    names = family.normal(source.weights) if family else {name: name for name in source.weights}
    config = _check_tied(config, family, names, source.weights)
    heads = _heads(config, family, names)
    layers = _num_layers(config)
    if layers > len(names):  # before thousands of layers are built
        raise MismatchError(
            f"{source.file} holds {len(names)} weights, too few for the {layers:,} layers that its "
            f"{source.described} requires."
        )
    with without_weights():
        network = build_network(config, heads)
    expected = {name: _theirs(family, name) for name in network.state_dict()}
    _check_names(source, network, names, expected, config, family)
    state = {}
    for name, parameter in network.state_dict().items():
        if all(theirs in names for theirs in expected[name]):
            pieces = partial(_pieces, network=network, family=family, name=name)
            state[name] = _read(source, names, pieces, parameter, dtype)
        else:  # a fixed bias
            state[name] = torch.zeros(parameter.shape, dtype=state["tokens.weight"].dtype)
    network.load_state_dict(state, assign=True)
    return network


def _num_layers(config: ModelConfig) -> int:
    """Return the number of layers with weights of their own."""
    layers = 1 if config.share_layers else config.num_layers + config.num_decoder_layers
    return layers * (config.num_feed_forwards if isinstance(config, TransformerConfig) else 1)


def _theirs(family: ModelFamily | None, name: str) -> list[str]:
    return family.their_names(name) if family else [name]


def _check_tied(
    config: ModelConfig,
    family: ModelFamily | None,
    names: Mapping[str, str],
    weights: TensorStore,
) -> ModelConfig:
    """Correct `tie_embeddings` of files that claim tied embeddings but store different ones."""
    output, table = (
        _theirs(family, name)[0] for name in ("heads.language.weight", "tokens.weight")
    )
    if not config.tie_embeddings or output not in names or table not in names:
        return config
    return replace(
        config, tie_embeddings=torch.equal(weights[names[output]], weights[names[table]])
    )


def _heads(config: ModelConfig, family: ModelFamily | None, names: Mapping[str, str]) -> list[str]:
    """Return the heads in a file; label heads share names, so the class in the config decides."""
    if family is not None and config.label_head:
        pooler = family.task_heads[config.label_head].pooler
        return ["pooler", config.label_head] if pooler else [config.label_head]
    if not config.hidden_size:  # an n-gram model has no vectors, and so no other heads
        return ["language"]
    known = [name for name in HEADS if name not in LABEL_HEADS or name == config.label_head]
    return [name for name in known if _has_head(name, config, family, names)]


def _has_head(
    name: str, config: ModelConfig, family: ModelFamily | None, names: Mapping[str, str]
) -> bool:
    """Return whether a file has a head; tied language heads have no weights of their own."""
    with without_weights():
        head = HEADS[name](config)
    parameters = [f"heads.{name}.{key}" for key, _ in head.named_parameters()]
    if not parameters:
        return name == "language" and config.has_language_head
    try:
        return any(theirs in names for key in parameters for theirs in _theirs(family, key))
    except MismatchError:  # a family without this head
        return False


def _check_names(
    source: WeightSource,
    network: nn.Module,
    names: Mapping[str, str],
    expected: Mapping[str, list[str]],
    config: ModelConfig,
    family: ModelFamily | None,
) -> None:
    """Raise `MismatchError` unless the file holds exactly the parameters of the network."""
    parameters = {name for name, _ in network.named_parameters()}
    needed = [theirs for name in parameters for theirs in expected[name]]
    missing = sorted(set(needed) - set(names))
    extra = set(names) - {theirs for row in expected.values() for theirs in row}
    if config.tie_embeddings:
        extra.discard(_theirs(family, "heads.language.weight")[0])
    if config.label_head and family is not None:  # older files have an unused pooler
        extra = {theirs for theirs in extra if ".pooler." not in theirs}
    for found, what in ((missing, "lacks"), (sorted(extra), "has more than the model:")):
        if found:
            more = (
                f" and {len(found) - MAX_NAMES_SHOWN} others"
                if len(found) > MAX_NAMES_SHOWN
                else ""
            )
            raise MismatchError(
                f"{source.file} {what} {len(found)} weights that its {source.described} "
                f"{'requires' if found is missing else 'does not define'} "
                f"({', '.join(found[:MAX_NAMES_SHOWN])}{more})."
            )


def _read(
    source: WeightSource,
    names: Mapping[str, str],
    pieces: Callable[[Tensor], list[tuple[str, Tensor]]],
    parameter: Tensor,
    dtype: torch.dtype | None,
) -> Tensor:
    """Read one parameter: a view of the file if it is in one piece there, else a copy."""
    parts, weights = pieces(parameter), source.weights
    for theirs, piece in parts:
        if weights.shape(names[theirs]) != tuple(piece.shape):
            raise MismatchError(
                f"{source.file}: {names[theirs]} has the shape "
                f"{list(weights.shape(names[theirs]))}, but its {source.described} requires "
                f"{list(piece.shape)}."
            )
    first, piece = names[parts[0][0]], parts[0][1]
    stored_dtype = weights.dtype(first)
    dtype = dtype if dtype is not None and stored_dtype.is_floating_point else stored_dtype
    if len(parts) == 1 and stored_dtype == dtype:
        stored = weights[first]
        return stored.view(parameter.shape) if piece.is_contiguous() else stored.t()
    if stored_dtype == dtype and piece.is_contiguous():
        found = weights.joined([names[theirs] for theirs, _ in parts])
        if found is not None:
            return found.view(parameter.shape)
    joined = torch.empty(parameter.shape, dtype=dtype)
    for theirs, piece in pieces(joined):
        weights.copy_into(names[theirs], piece)
    return joined


class _SkipInitialization(TorchFunctionMode):
    """Skip the initialization of embeddings, for which torch imports 800 modules, and of layers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return func(*args, **(kwargs or {}))


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules on the meta device: parameters have shapes, but no memory and no values."""
    with torch.device("meta"), _SkipInitialization():
        yield


def _pieces(
    tensor: Tensor, network: nn.Module, family: ModelFamily | None, name: str
) -> list[tuple[str, Tensor]]:
    """Split a parameter as the family stores it: names in its files, and views of our tensor."""
    theirs = _theirs(family, name)
    module = network.get_submodule(name.rpartition(".")[0])
    fused = len(theirs) > 1 and isinstance(module, FusedLinear)
    parts = tensor.split(module.splits) if fused else [tensor]
    if family is not None:
        parts = [family.as_stored(name, part) for part in parts]
    return list(zip(theirs, parts, strict=True))


def write_network(network: LanguageNetwork, path: Path, *, dtype: torch.dtype | None = None) -> str:
    """Save a network as a directory, and return the name of the family whose format it has."""
    config, heads = network.config, saved_heads(network.config, network.heads)
    family = family_of(config, heads)
    path.mkdir(parents=True, exist_ok=True)
    values = _native_values(config, heads)
    if family is not None:
        values = family.to_theirs(require_transformer_config(config), heads)
    kept = dtype or network.dtype
    values["dtype"] = str(kept).removeprefix("torch.")
    write_weights(path / WEIGHTS, dict(named_weights(network, family, kept, heads)))
    write_json(path / CONFIG, values)
    return family.name if family else NATIVE


def _native_values(config: ModelConfig, heads: tuple[str, ...]) -> dict[str, Any]:
    network = network_name(config)
    kind = {} if network == TRANSFORMER else {"network": network}
    return {"model_type": NATIVE, **kind, "heads": list(heads), "model": config.to_dict()}


def named_weights(
    network: LanguageNetwork,
    family: ModelFamily | None,
    dtype: torch.dtype,
    heads: Iterable[str],
) -> list[tuple[str, Tensor]]:
    """Return the weights of the body and of these heads, with the family's names."""
    parameters = {name for name, _ in network.named_parameters()}
    prefix = family.prefix if family is not None and family.is_bare(heads) else ""
    omitted = tuple(f"heads.{head}." for head in set(network.heads) - set(heads))
    named: list[tuple[str, Tensor]] = []
    for name, tensor in network.state_dict().items():
        if name.startswith(omitted):
            continue
        if name not in parameters and tensor.is_floating_point() and not tensor.any():
            continue  # a fixed bias of zeros
        tensor = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor
        for theirs, piece in _pieces(tensor, network, family, name):
            named.append((theirs.removeprefix(prefix), piece))
    stored, copies = dict(named), family.copies if family is not None else {}
    return named + [(copy, stored[first]) for copy, first in copies.items() if first in stored]
