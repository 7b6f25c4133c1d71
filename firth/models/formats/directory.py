"""A model in a directory: `config.json` and `model.safetensors`, as Hugging Face lays them out.

A network whose shape a family can express is written down as that family does, so that any
program that knows the family opens it. Every other one has the `model_type` "firth": the same two
files, with the names this package uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from firth.errors import InputError, MismatchError
from firth.files import write_json
from firth.models.config import ModelConfig
from firth.models.formats.albert import ALBERT, REMBERT
from firth.models.formats.bart import BART, MBART
from firth.models.formats.bert import BERT, ELECTRA, ROBERTA, XLM_ROBERTA
from firth.models.formats.deberta import DEBERTA
from firth.models.formats.distilbert import DISTILBERT
from firth.models.formats.family import Family
from firth.models.formats.gemma import GEMMA3
from firth.models.formats.gpt import GPT1, GPT2
from firth.models.formats.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from firth.models.formats.mobilebert import MOBILEBERT, MOBILEBERT_POOLED
from firth.models.formats.modernbert import MODERNBERT, MODERNBERT_DECODER
from firth.models.formats.mpnet import MPNET
from firth.models.formats.t5 import MT5, MT5_GATED, T5, T5_ENCODERS, T5_GATED
from firth.models.formats.weights import open_weights, write_weights
from firth.models.formats.xlm import XLM
from firth.models.heads import HEADS
from firth.models.labels import LABEL_HEADS
from firth.models.layers import Fused
from firth.models.transformer import Transformer

FAMILIES: tuple[Family, ...] = (
    *(BERT, ROBERTA, XLM_ROBERTA, ELECTRA, DISTILBERT, ALBERT, REMBERT),
    *(DEBERTA, MOBILEBERT, MOBILEBERT_POOLED, MPNET, XLM, MODERNBERT, MODERNBERT_DECODER),
    *(GPT1, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3),
    *(T5, T5_GATED, MT5, MT5_GATED, *T5_ENCODERS, BART, MBART),
)
NATIVE = "firth"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
MOST_CONFIG = 10_000_000  # bytes
SHOWN = 4  # names in a message


def family_of(config: ModelConfig, heads: Iterable[str] = ()) -> Family | None:
    """The family that can write a model of this shape down, if there is one.

    >>> from firth.models.presets import preset
    >>> family_of(preset("bert-base").config).name
    'bert'
    """
    own_first = sorted(FAMILIES, key=lambda family: family.name != config.family)
    wanted = tuple(heads)
    return next((one for one in own_first if one.has(wanted) and one.fits(config, wanted)), None)


def labelled(
    config: ModelConfig, head: str, labels: Iterable[str] = (), labelling: str = "one"
) -> tuple[ModelConfig, list[str]]:
    """A model's configuration with a head for labels, as its family has it; and its heads.

    >>> from firth.models.presets import preset
    >>> config, heads = labelled(preset("bert-base").config, "classify", ["bad", "good"])
    >>> config.labels, heads
    (('bad', 'good'), ['pooler', 'classify'])
    """
    pooling = {"encoder": config.pooling, "decoder": "last", "encoder-decoder": "mean"}
    usual: dict[str, Any] = {"pooling": pooling[config.architecture]}
    bare = replace(config, label_head="", labels=())
    family = family_of(bare)
    row = family.task_heads.get(head) if family is not None else None
    shape = {**usual, **(row.shape if row is not None else {})}
    heads = ["pooler", head] if row is not None and row.pooler else [head]
    shape |= {"label_head": head, "labels": tuple(labels), "labelling": labelling}
    return replace(bare, **shape), heads


def nameable_heads(config: ModelConfig, heads: Iterable[str]) -> list[str]:
    """Those of some heads that the family of a shape has names for; all, if it has no family."""
    family = family_of(config)
    return [head for head in heads if family is None or family.has([head])]


def read_config(path: Path) -> tuple[ModelConfig, Family | None]:
    """The configuration in a directory, and the family it is written in (None: our own)."""
    file = path / CONFIG
    if not path.is_dir():
        raise InputError(f"{path} is not a directory with a model.")
    if not file.is_file():
        raise InputError(f"{path} holds no model: there is no {CONFIG} in it.")
    if file.stat().st_size > MOST_CONFIG:
        raise InputError(f"{file} is too large to be a configuration.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON ({str(error).splitlines()[0]}).") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError(f"{file} does not say what model it is: it has no model_type.")
    try:
        return _config(values)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{file} has a value that cannot be right ({error!r}).") from error


def _config(values: dict[str, Any]) -> tuple[ModelConfig, Family | None]:
    kind = values["model_type"]
    if kind == NATIVE:
        if not isinstance(values.get("model"), dict):
            raise InputError('a model of the family "firth" describes itself under "model".')
        return ModelConfig.from_dict(values["model"]), None
    families = [family for family in FAMILIES if family.name == kind]
    if not families:
        known = ", ".join(dict.fromkeys(family.name for family in FAMILIES))
        raise InputError(f"models of the family {kind!r} cannot be read; known are {known}.")
    # A family may have two tables (T5, plain and gated): the one that says the same again.
    configs, errors = [], []
    for family in families:
        try:
            configs.append((family.config(values), family))
        except InputError as error:
            errors.append(error)
    if not configs:
        raise errors[0]
    return next((pair for pair in configs if pair[1].fits(pair[0])), configs[0])


def read_network(path: Path, *, dtype: torch.dtype | None = None) -> Transformer:
    """The network in a directory; its weights stay in the file's memory map where they can."""
    config, family = read_config(path)
    return build_network(config, family, Source(open_weights(path), path / WEIGHTS), dtype)


class Stored(Protocol):
    """Named tensors in a file of whatever format."""

    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> Tensor: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> torch.dtype: ...
    def copy_into(self, name: str, destination: Tensor) -> None: ...


@dataclass(frozen=True)
class Source:
    """Weights, the file they lie in, and where it is said which they must be."""

    weights: Stored
    file: Path
    described: str = CONFIG


def build_network(
    config: ModelConfig, family: Family | None, source: Source, dtype: torch.dtype | None = None
) -> Transformer:
    """A network of this shape, with the weights of a file that a family has named."""
    names = family.normal(source.weights) if family else {name: name for name in source.weights}
    config = _really_tied(config, family, names, source.weights)
    heads = _heads(config, family, names)
    with torch.device("meta"):
        network = Transformer(config, heads)
    wanted = {name: _theirs(family, name) for name in network.state_dict()}
    _check_names(source, network, names, wanted, config, family)
    state = {}
    for name, parameter in network.state_dict().items():
        if all(theirs in names for theirs in wanted[name]):
            pieces = partial(_pieces, network=network, family=family, name=name)
            state[name] = _read(source, names, pieces, parameter, dtype)
        else:  # a bias that is never trained
            state[name] = torch.zeros(parameter.shape, dtype=state["tokens.weight"].dtype)
    network.load_state_dict(state, assign=True)
    return network


def _theirs(family: Family | None, name: str) -> list[str]:
    return family.their_names(name) if family else [name]


def _really_tied(
    config: ModelConfig, family: Family | None, names: Mapping[str, str], weights: Stored
) -> ModelConfig:
    """Files say of some models that the output matrix is the table of embeddings; they may err."""
    output, table = (
        _theirs(family, name)[0] for name in ("heads.language.weight", "tokens.weight")
    )
    if not config.tied or output not in names or table not in names:
        return config
    return replace(config, tied=torch.equal(weights[names[output]], weights[names[table]]))


def _heads(config: ModelConfig, family: Family | None, names: Mapping[str, str]) -> list[str]:
    """The heads in a file. Those for labels share names: the class that wrote it tells."""
    if family is not None and config.label_head:
        pooler = family.task_heads[config.label_head].pooler
        return ["pooler", config.label_head] if pooler else [config.label_head]
    known = [name for name in HEADS if name not in LABEL_HEADS or name == config.label_head]
    return [name for name in known if _has_head(name, config, family, names)]


def _has_head(
    name: str, config: ModelConfig, family: Family | None, names: Mapping[str, str]
) -> bool:
    """Whether a file has a head; one without weights of its own is always there."""
    with torch.device("meta"):
        head = HEADS[name](config)
    parameters = [f"heads.{name}.{key}" for key, _ in head.named_parameters()]
    if not parameters:
        return name == "language"
    try:
        return any(theirs in names for key in parameters for theirs in _theirs(family, key))
    except MismatchError:  # a family without this head
        return False


def _check_names(
    source: Source,
    network: nn.Module,
    names: Mapping[str, str],
    wanted: Mapping[str, list[str]],
    config: ModelConfig,
    family: Family | None,
) -> None:
    """Every parameter must be in the file, and everything in the file must be a parameter."""
    trained = {name for name, _ in network.named_parameters()}
    needed = [theirs for name in trained for theirs in wanted[name]]
    missing = sorted(set(needed) - set(names))
    extra = set(names) - {theirs for row in wanted.values() for theirs in row}
    if config.tied:
        extra.discard(_theirs(family, "heads.language.weight")[0])
    if config.label_head and family is not None:  # older files keep a pooler that is not used
        extra = {theirs for theirs in extra if ".pooler." not in theirs}
    for found, what in ((missing, "lacks"), (sorted(extra), "has more than the model:")):
        if found:
            more = f" and {len(found) - SHOWN} others" if len(found) > SHOWN else ""
            raise MismatchError(
                f"{source.file} {what} {len(found)} weights that its {source.described} "
                f"{'asks for' if found is missing else 'does not know'} "
                f"({', '.join(found[:SHOWN])}{more})."
            )


def _read(
    source: Source,
    names: Mapping[str, str],
    pieces: Callable[[Tensor], list[tuple[str, Tensor]]],
    parameter: Tensor,
    dtype: torch.dtype | None,
) -> Tensor:
    """One parameter: a view of the file where ours is theirs, otherwise put together."""
    asked, weights = pieces(parameter), source.weights
    for theirs, piece in asked:
        if weights.shape(names[theirs]) != tuple(piece.shape):
            raise MismatchError(
                f"{source.file}: {names[theirs]} has the shape "
                f"{list(weights.shape(names[theirs]))}, but its {source.described} asks for "
                f"{list(piece.shape)}."
            )
    first, piece = names[asked[0][0]], asked[0][1]
    dtype = dtype or weights.dtype(first)
    if len(asked) == 1 and weights.dtype(first) == dtype:
        stored = weights[first]
        return stored.view(parameter.shape) if piece.is_contiguous() else stored.t()
    joined = torch.empty(parameter.shape, dtype=dtype)
    for theirs, piece in pieces(joined):
        weights.copy_into(names[theirs], piece)
    return joined


def _pieces(
    tensor: Tensor, network: nn.Module, family: Family | None, name: str
) -> list[tuple[str, Tensor]]:
    """A parameter as a family stores it: its names there, and the part of ours behind each."""
    theirs = _theirs(family, name)
    module = network.get_submodule(name.rpartition(".")[0])
    fused = len(theirs) > 1 and isinstance(module, Fused)
    parts = tensor.split(module.splits) if fused else [tensor]
    if family is not None:
        parts = [family.as_stored(name, part) for part in parts]
    return list(zip(theirs, parts, strict=True))


def write_network(network: Transformer, path: Path, *, dtype: torch.dtype | None = None) -> str:
    """Write a network as a directory; the name of the family it is written in is returned."""
    config, heads = network.config, tuple(network.heads)
    family = family_of(config, heads)
    path.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = (
        family.to_theirs(config, heads)
        if family
        else {"model_type": NATIVE, "heads": list(heads), "model": config.to_dict()}
    )
    kept = dtype or network.tokens.weight.dtype
    values["dtype"] = str(kept).removeprefix("torch.")
    write_weights(path / WEIGHTS, dict(named_weights(network, family, kept)))
    write_json(path / CONFIG, values)
    return family.name if family else NATIVE


def named_weights(
    network: Transformer, family: Family | None, dtype: torch.dtype
) -> list[tuple[str, Tensor]]:
    """All weights under the names of a family."""
    trained = {name for name, _ in network.named_parameters()}
    prefix = family.prefix if family is not None and family.is_bare(network.heads) else ""
    named: list[tuple[str, Tensor]] = []
    for name, tensor in network.state_dict().items():
        if name not in trained and not tensor.any():
            continue  # a bias of zeros that is never trained
        tensor = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor
        for theirs, piece in _pieces(tensor, network, family, name):
            named.append((theirs.removeprefix(prefix), piece))
    stored, copies = dict(named), family.copies if family is not None else {}
    return named + [(copy, stored[first]) for copy, first in copies.items() if first in stored]
