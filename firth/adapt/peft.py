"""Adapters as PEFT writes them: `adapter_config.json` and `adapter_model.safetensors`.

What PEFT computes was read from its source (0.21) and is tested against it. Two things one would
not guess: behind an encoder, a prefix stands in the decoder's own attention alone; and there layer
i reads pair 2i of those in the file, counted around, so that with an even number of layers half of
the pairs are never read. Twice as many pairs, every second one empty, give each layer its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firth.adapt.adapted import Adapted
from firth.adapt.changes import Change
from firth.adapt.prompts import Pasts
from firth.adapt.table import STRATEGIES, Strategy, from_options
from firth.adapt.targets import family_without_labels, pieces
from firth.errors import InputError, MismatchError
from firth.models.config import ModelConfig
from firth.models.formats.directory import labelled
from firth.models.formats.family import Family
from firth.models.formats.labels import read_labels
from firth.models.transformer import Transformer

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
TOKENS = "prompt_embeddings"  # all that a prompt or a prefix has
MATRICES = {"a": "lora_A.weight", "b": "lora_B.weight", "lengths": "lora_magnitude_vector"}
FACTORS = "ia3_l"
TASKS = {"classify": "SEQ_CLS", "tag": "TOKEN_CLS", "span": "QUESTION_ANS", "choose": None}
NO_TASK = {
    "encoder": "FEATURE_EXTRACTION",
    "decoder": "CAUSAL_LM",
    "encoder-decoder": "SEQ_2_SEQ_LM",
}
# What a configuration may say without changing what is computed; all else must be empty,
HARMLESS = """
    peft_type peft_version task_type auto_mapping base_model_name_or_path revision inference_mode
    r lora_alpha lora_dropout target_modules exclude_modules fan_in_fan_out use_rslora use_dora
    modules_to_save layers_to_transform layers_pattern megatron_core qalora_group_size
    feedforward_modules init_ia3_weights num_virtual_tokens token_dim num_transformer_submodules
    num_attention_heads num_layers prompt_tuning_init prompt_tuning_init_text tokenizer_name_or_path
    tokenizer_kwargs prefix_projection encoder_hidden_size init_weights
""".split()
# or one of these.
USUAL = {"bias": ("none",), "init_lora_weights": (True, False, "gaussian", "eva")}
Shapes = Mapping[str, tuple[int, ...]]


def family_in_peft(network: Transformer) -> Family:
    """The family whose names PEFT uses for a network."""
    family = family_without_labels(network.config)
    if family is None:
        raise MismatchError("no family of transformers has the shape of this network")
    return family


def obstacle(adapted: Adapted) -> str:
    """Why PEFT cannot express an adapter; "" when it can."""
    network, name = adapted.network, adapted.strategy.name
    if not adapted.strategy.row.peft:
        return f"PEFT has nothing like {name}"
    try:
        family = family_in_peft(network)
    except MismatchError as error:
        return str(error)
    known = set(adapted.heads) <= {"pooler", *family.task_heads}
    if adapted.heads and not (known and family.fits(adapted.config, adapted.heads)):
        return f"no class of the family {family.name} has the heads {', '.join(adapted.heads)}"
    if name in ("prefix", "prompt") and network.config.reader is not None:
        return f"PEFT has no {name} for an encoder and a decoder that were joined"
    if name == "prompt" and pools_prompt(adapted.heads, adapted.config):
        return "PEFT classifies what became of the prompt, and not of the text"
    is_choice = name == "prefix" and "choose" in adapted.heads
    if is_choice or (name == "prefix" and not family.takes_prefix):
        return f"PEFT passes over a {name} in a network of this kind"
    if name == "prefix" and network.config.architecture == "encoder-decoder":
        decoder = adapted.changes.get("decoder")
        if len(adapted.changes) > 1 or not isinstance(decoder, Pasts) or decoder.cross is not None:
            return "PEFT's prefix stands in the decoder's own attention alone"
    return ""


def pools_prompt(heads: Iterable[str], config: ModelConfig) -> bool:
    """Whether PEFT takes the vectors of a prompt for the text that a head classifies."""
    return config.pooling != "last" and bool({"classify", "choose"} & set(heads))


# --- names


def names(
    network: Transformer, changes: Mapping[str, Change], heads: Mapping[str, nn.Module]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Each tensor of an adapter: what the family and PEFT call it, and its shape there."""
    family = family_in_peft(network)
    found = {
        ours: (f"{module}.{name}" if module else name, shape)
        for ours, module, name, shape in _tensors(network, changes)
    }
    for head, module in heads.items():
        for key, tensor in module.state_dict().items():
            ours = f"heads.{head}.{key}"
            found[ours] = family.their_names(ours)[0], tuple(tensor.shape)
    return found


def _tensors(
    network: Transformer, changes: Mapping[str, Change]
) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    """Each tensor of an adapter: our name, their module, the name in it and the shape there."""
    stored = {(piece.host, piece.name): piece.theirs for piece in pieces(network)}
    whole = {piece.host: piece.theirs for piece in pieces(network)}
    for host, change in changes.items():
        for key, tensor in change.named_parameters():
            ours, shape = f"{host}.{change.slot}.{key}", tuple(tensor.shape)
            match key.split("."):
                case ["pairs", piece, kind]:
                    yield ours, stored[host, piece], MATRICES[kind], shape
                case ["out", piece]:
                    yield ours, stored[host, piece], FACTORS, (*shape, 1)
                case ["into"]:
                    yield ours, whole[host], FACTORS, (1, *shape)
                case _:
                    yield ours, "", TOKENS, (len(tensor), tensor[0].numel())


def outward(network: Transformer, kind: str, theirs: str) -> str:
    """The name of a tensor in a file of PEFT's."""
    inside = "base_model." if kind.endswith("_TUNING") else "base_model.model."
    return theirs if theirs == TOKENS else inside + _in_class(network, theirs)


def _in_class(network: Transformer, theirs: str) -> str:
    """A name of the family as the class that has just the network's heads gives it."""
    family = family_in_peft(network)
    try:
        return theirs.removeprefix(family.prefix if family.is_bare(network.heads) else "")
    except MismatchError:  # no class has them all
        return theirs


def inward(network: Transformer, stored: Iterable[str]) -> dict[str, str]:
    """The names of a file's tensors as `names` gives them -> as they stand there."""
    begun = {re.sub(r"^base_model\.(model\.)?", "", name): name for name in stored}
    found = family_in_peft(network).normal([name for name in begun if name != TOKENS])
    for name in sorted(set(begun) - set(found.values()) - {TOKENS}):
        raise MismatchError(f"it holds {begun[name]}, which has no place in this network")
    return {full: begun[name] for full, name in found.items()} | (
        {TOKENS: TOKENS} if TOKENS in begun else {}
    )


def heads_in(network: Transformer, stored: Iterable[str]) -> list[str]:
    """The heads of a network that a file has weights for, by its names from `inward`."""
    family, held = family_in_peft(network), set(stored)

    def is_there(head: str) -> bool:
        keys = [f"heads.{head}.{key}" for key in network.heads[head].state_dict()]
        return all(family.their_names(key)[0] in held for key in keys)

    known = [head for head in network.heads if head in ("pooler", *family.task_heads)]
    return [head for head in known if is_there(head)]


def labels_in(
    network: Transformer, config: Mapping[str, Any], shapes: Shapes
) -> tuple[ModelConfig, list[str]]:
    """A network's shape with the labels of a head that is new to it; the heads that come with it.

    How many labels there are is seen from the head; what they are called, PEFT does not say.
    """
    family, task = family_in_peft(network), config.get("task_type")
    made_of = (config.get("auto_mapping") or {}).get("base_model_class")
    for head, row in family.task_heads.items():
        output = shapes.get(family.their_names(f"heads.{head}.output.weight")[0], ())
        is_meant = row.cls == made_of or (task and TASKS[head] == task)
        if is_meant and len(output) == 2 and head not in network.heads:
            labels = read_labels({"num_labels": output[0]}, head)
            model, tops = labelled(network.config, head, **labels)
            held = {head, *heads_in(network, shapes)}
            return model, [top for top in tops if top in held or top not in network.heads]
    return network.config, []


# --- writing


def describe(adapted: Adapted, base: str) -> dict[str, Any]:
    """What `adapter_config.json` says of an adapter."""
    network, chosen = adapted.network, adapted.strategy
    family, options = family_in_peft(network), chosen.options
    tasks = [TASKS[head] for head in adapted.heads if head in TASKS]
    tops = [theirs for theirs, _ in names(network, {}, adapted.heads).values()]
    modules = [name.removeprefix(family.prefix).split(".")[0] for name in tops]
    config: dict[str, Any] = {
        "peft_type": chosen.row.peft,
        "task_type": tasks[0] if tasks else NO_TASK[network.config.architecture],
        "base_model_name_or_path": base or None,
        "inference_mode": True,
        "modules_to_save": list(dict.fromkeys(modules)) or None,
    }
    if chosen.name in ("prefix", "prompt"):
        return config | _shape_of_tokens(adapted)
    hosts = {ours: _in_class(network, at) for ours, at, _, _ in _tensors(network, adapted.changes)}
    targets = list(dict.fromkeys(hosts.values()))
    config |= {"target_modules": targets, "fan_in_fan_out": bool(family.transposed)}
    if chosen.name == "ia3":
        inputs = [module for ours, module in hosts.items() if ours.endswith(".into")]
        return config | {"feedforward_modules": inputs}
    return config | {
        "r": options.rank,
        "lora_alpha": options.alpha,
        "lora_dropout": options.dropout,
        "bias": "none",
        "use_rslora": options.rslora,
        "use_dora": options.dora,
    }


def _shape_of_tokens(adapted: Adapted) -> dict[str, Any]:
    model, is_prompt = adapted.network.config, adapted.strategy.name == "prompt"
    twice = 1 if is_prompt or model.architecture != "encoder-decoder" else 2
    return {
        "num_virtual_tokens": adapted.strategy.options.length,
        "num_transformer_submodules": twice,
        "num_attention_heads": model.heads if is_prompt else model.kv_heads,
        "token_dim": model.table_width if is_prompt else model.kv_heads * model.head_width,
        "num_layers": twice * adapted.network.stack.layers,
    }


def pack(network: Transformer, kind: str, rows: Tensor) -> Tensor:
    """A prompt or a prefix as PEFT wants it."""  # (P, …)
    model = network.config
    if kind == "prompt":  # PEFT's stand beside what the table gives, which may be scaled already
        return rows * model.width**0.5 if model.embedding_scale else rows
    if model.architecture != "encoder-decoder":
        return rows
    pairs = rows.unflatten(1, (network.stack.layers, -1))
    return torch.stack([pairs, torch.zeros_like(pairs)], dim=2).flatten(1)


# --- reading


def understand(network: Transformer, config: Mapping[str, Any], shapes: Shapes) -> Strategy:
    """What an adapter of PEFT is here; `shapes`: of its tensors, by their names from `inward`."""
    known = {row.peft: name for name, row in STRATEGIES.items() if row.peft}
    if config.get("peft_type") not in known:
        raise InputError(
            f"an adapter of the type {config.get('peft_type')!r} cannot be read; known are "
            f"{', '.join(known)}"
        )
    for key, value in config.items():
        if not (value in USUAL[key] if key in USUAL else key in HARMLESS or not value):
            raise InputError(f"an adapter made with {key} = {value!r} cannot be read")
    name, family = known[config["peft_type"]], family_in_peft(network)
    if name == "prefix" and not family.takes_prefix:
        raise MismatchError("PEFT passes over a prefix in a network of this kind: it means nothing")
    return from_options(name, _OPTIONS[name](network, config, shapes))


def _lora(network: Transformer, config: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    ends = f".{MATRICES['a']}"
    return {
        "rank": config.get("r", 8),
        "alpha": config.get("lora_alpha", 8),
        "dropout": config.get("lora_dropout", 0.0),
        "rslora": config.get("use_rslora", False),
        "dora": config.get("use_dora", False),
        "targets": [piece.path for piece in pieces(network) if piece.theirs + ends in shapes],
    }


def _ia3(network: Transformer, config: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Factors of what comes out are a column, of what goes in a row."""
    found = {piece.path: shapes.get(f"{piece.theirs}.{FACTORS}", ()) for piece in pieces(network)}
    return {
        "targets": [path for path, shape in found.items() if shape[1:] == (1,)],
        "inputs": [path for path, shape in found.items() if shape[:1] == (1,)],
    }


def _prompt(network: Transformer, config: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    return {"length": config.get("num_virtual_tokens")}


def _prefix(network: Transformer, config: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    side = "decoder" if network.config.has_decoder else "encoder"
    return {"length": config.get("num_virtual_tokens"), "where": [side]}


_OPTIONS = {"lora": _lora, "ia3": _ia3, "prompt": _prompt, "prefix": _prefix}


def unpack(network: Transformer, kind: str, rows: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Undo `pack`, of whatever PEFT has made itself, too."""
    model, layers = network.config, network.stack.layers
    if rows.dim() != 2:
        raise MismatchError(f"{TOKENS} has {rows.dim()} dimensions, not two")
    if kind == "prompt":  # for an encoder and a decoder PEFT stores two, and uses the first
        rows = rows[: config["num_virtual_tokens"]]
        return rows / model.width**0.5 if model.embedding_scale else rows
    pairs = int(config.get("num_layers") or layers)
    if model.architecture != "encoder-decoder" or rows.shape[1] % max(pairs, 1):
        return rows
    if pairs < layers:
        raise MismatchError(f"it gives a prefix to {pairs} layers of a decoder that has {layers}")
    read = torch.arange(layers) * 2 % pairs
    return rows.unflatten(1, (pairs, -1))[:, read].flatten(1)
