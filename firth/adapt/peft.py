"""PEFT's adapter format: `adapter_config.json` and `adapter_model.safetensors`.

Tested against PEFT 0.21. Two surprises in PEFT's prefix tuning of encoder-decoders: the prefix is
used in decoder self-attention only; and layer i uses pair 2i (modulo their number) of the keys and
values in the file, so with an even number of layers half of the pairs are never used. Files written
here therefore hold twice as many pairs, every second one zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firth.adapt.apply import AppliedStrategy
from firth.adapt.injection import InjectedModule
from firth.adapt.prompt_tuning import PrefixKeyValues
from firth.adapt.registry import STRATEGIES, Strategy, strategy_from_options
from firth.adapt.target_modules import family_without_labels, target_modules
from firth.formats.huggingface.directory import add_label_head
from firth.formats.huggingface.family import ModelFamily
from firth.formats.huggingface.label_heads import read_labels
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.models.transformer_config import require_transformer_config
from firth.utils.errors import InputError, MismatchError

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
TOKENS = "prompt_embeddings"  # the only tensor of a prompt or a prefix
MATRICES = {"a": "lora_A.weight", "b": "lora_B.weight", "lengths": "lora_magnitude_vector"}
FACTORS = "ia3_l"
TASKS = {"classify": "SEQ_CLS", "tag": "TOKEN_CLS", "span": "QUESTION_ANS", "choose": None}
NO_TASK = {
    "encoder": "FEATURE_EXTRACTION",
    "decoder": "CAUSAL_LM",
    "encoder-decoder": "SEQ_2_SEQ_LM",
}
# Keys of a PEFT config that may have any value; all other keys must be empty,
IGNORED_KEYS = """
    peft_type peft_version task_type auto_mapping base_model_name_or_path revision inference_mode
    r lora_alpha lora_dropout target_modules exclude_modules fan_in_fan_out use_rslora use_dora
    modules_to_save layers_to_transform layers_pattern megatron_core qalora_group_size
    feedforward_modules init_ia3_weights num_virtual_tokens token_dim num_transformer_submodules
    num_attention_heads num_layers prompt_tuning_init prompt_tuning_init_text tokenizer_name_or_path
    tokenizer_kwargs prefix_projection encoder_hidden_size init_weights
""".split()
# or have one of these values.
ALLOWED_VALUES = {"bias": ("none",), "init_lora_weights": (True, False, "gaussian", "eva")}
Shapes = Mapping[str, tuple[int, ...]]


def family_in_peft(network: LanguageNetwork) -> ModelFamily:
    """Return the Hugging Face family whose parameter names PEFT uses for a network."""
    family = family_without_labels(network.config)
    if family is None:
        raise MismatchError("no model family of transformers has this architecture")
    return family


def unsupported_reason(adapted: AppliedStrategy) -> str:
    """Return why PEFT does not support an adapter; "" if it does."""
    network, name = adapted.network, adapted.strategy.name
    if not adapted.strategy.row.peft:
        return f"PEFT has no equivalent of {name}"
    try:
        family = family_in_peft(network)
    except MismatchError as error:
        return str(error)
    known = set(adapted.heads) <= {"pooler", *family.task_heads}
    config = require_transformer_config(adapted.config)
    if adapted.heads and not (known and family.fits(config, adapted.heads)):
        return f"no class of the family {family.name} has the heads {', '.join(adapted.heads)}"
    if name in ("prefix", "prompt") and network.config.encoder is not None:
        return f"PEFT has no {name} for a joined encoder and decoder"
    if name == "prompt" and pools_prompt(adapted.heads, adapted.config):
        return "PEFT's classifier pools the virtual tokens"
    is_choice = name == "prefix" and "choose" in adapted.heads
    if is_choice or (name == "prefix" and not family.takes_prefix):
        return f"PEFT ignores a {name} in this architecture"
    if name == "prefix" and network.config.architecture == "encoder-decoder":
        decoder = adapted.modules.get("decoder")
        if (
            len(adapted.modules) > 1
            or not isinstance(decoder, PrefixKeyValues)
            or decoder.cross is not None
        ):
            return "PEFT's prefix is used in decoder self-attention only"
    return ""


def pools_prompt(heads: Iterable[str], config: ModelConfig) -> bool:
    """Return whether PEFT's classifier would pool the virtual tokens of a prompt."""
    return config.pooling != "last" and bool({"classify", "choose"} & set(heads))


# --- names


def tensor_names(
    network: LanguageNetwork, modules: Mapping[str, InjectedModule], heads: Mapping[str, nn.Module]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the name and shape of each tensor of an adapter in PEFT's files, by our name."""
    family = family_in_peft(network)
    found = {
        ours: (f"{module}.{name}" if module else name, shape)
        for ours, module, name, shape in _tensors(network, modules)
    }
    for head, module in heads.items():
        for key, tensor in module.state_dict().items():
            ours = f"heads.{head}.{key}"
            found[ours] = family.their_names(ours)[0], tuple(tensor.shape)
    return found


def _tensors(
    network: LanguageNetwork, modules: Mapping[str, InjectedModule]
) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    """Yield our name, PEFT's module, the name in it and the shape of each tensor of an adapter."""
    targets = target_modules(network)
    stored = {(target.host, target.name): target.theirs for target in targets}
    by_host = {target.host: target.theirs for target in targets}
    for host, module in modules.items():
        for key, tensor in module.named_parameters():
            ours, shape = f"{host}.{module.slot}.{key}", tuple(tensor.shape)
            match key.split("."):
                case ["pairs", target, kind]:
                    yield ours, stored[host, target], MATRICES[kind], shape
                case ["out", target]:
                    yield ours, stored[host, target], FACTORS, (*shape, 1)
                case ["into"]:
                    yield ours, by_host[host], FACTORS, (1, *shape)
                case _:
                    yield ours, "", TOKENS, (len(tensor), tensor[0].numel())


def to_peft_name(network: LanguageNetwork, kind: str, theirs: str) -> str:
    """Return the name of a tensor in PEFT's files."""
    prefix = "base_model." if kind.endswith("_TUNING") else "base_model.model."
    return theirs if theirs == TOKENS else prefix + _in_class(network, theirs)


def _in_class(network: LanguageNetwork, theirs: str) -> str:
    """Return a parameter name as in the Hugging Face class with exactly the network's heads."""
    family = family_in_peft(network)
    try:
        return theirs.removeprefix(family.prefix if family.is_bare(network.heads) else "")
    except MismatchError:  # no class has all heads
        return theirs


def from_peft_names(network: LanguageNetwork, stored: Iterable[str]) -> dict[str, str]:
    """Map names as `tensor_names` returns them to the names in a file."""
    bare = {re.sub(r"^base_model\.(model\.)?", "", name): name for name in stored}
    found = family_in_peft(network).normal([name for name in bare if name != TOKENS])
    for name in sorted(set(bare) - set(found.values()) - {TOKENS}):
        raise MismatchError(f"it holds {bare[name]}, which this network does not have")
    return {full: bare[name] for full, name in found.items()} | (
        {TOKENS: TOKENS} if TOKENS in bare else {}
    )


def stored_heads(network: LanguageNetwork, stored: Iterable[str]) -> list[str]:
    """Return the network's heads with weights in a file, by the names of `from_peft_names`."""
    family, names = family_in_peft(network), set(stored)

    def is_stored(head: str) -> bool:
        keys = [f"heads.{head}.{key}" for key in network.heads[head].state_dict()]
        return all(family.their_names(key)[0] in names for key in keys)

    known = [head for head in network.heads if head in ("pooler", *family.task_heads)]
    return [head for head in known if is_stored(head)]


def stored_labels(
    network: LanguageNetwork, config: Mapping[str, Any], shapes: Shapes
) -> tuple[ModelConfig, list[str]]:
    """Return the model config with the labels of a new head in a file, and the heads to load.

    The number of labels is that of the head's rows; PEFT does not store their names.
    """
    family, task = family_in_peft(network), config.get("task_type")
    base_class = (config.get("auto_mapping") or {}).get("base_model_class")
    for head, row in family.task_heads.items():
        output = shapes.get(family.their_names(f"heads.{head}.output.weight")[0], ())
        is_task = row.cls == base_class or (task and TASKS[head] == task)
        if is_task and len(output) == 2 and head not in network.heads:
            labels = read_labels({"num_labels": output[0]}, head)
            model, heads = add_label_head(network.config, head, **labels)
            stored = {head, *stored_heads(network, shapes)}
            return model, [name for name in heads if name in stored or name not in network.heads]
    return network.config, []


# --- writing


def peft_config(adapted: AppliedStrategy, base: str) -> dict[str, Any]:
    """Return the content of `adapter_config.json`."""
    network, chosen = adapted.network, adapted.strategy
    family, options = family_in_peft(network), chosen.options
    tasks = [TASKS[head] for head in adapted.heads if head in TASKS]
    of_heads = [theirs for theirs, _ in tensor_names(network, {}, adapted.heads).values()]
    modules = [name.removeprefix(family.prefix).split(".")[0] for name in of_heads]
    config: dict[str, Any] = {
        "peft_type": chosen.row.peft,
        "task_type": tasks[0] if tasks else NO_TASK[network.config.architecture],
        "base_model_name_or_path": base or None,
        "inference_mode": True,
        "modules_to_save": list(dict.fromkeys(modules)) or None,
    }
    if chosen.name in ("prefix", "prompt"):
        return config | _shape_of_tokens(adapted)
    hosts = {ours: _in_class(network, at) for ours, at, _, _ in _tensors(network, adapted.modules)}
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


def _shape_of_tokens(adapted: AppliedStrategy) -> dict[str, Any]:
    model = require_transformer_config(adapted.network.config)
    is_prompt = adapted.strategy.name == "prompt"
    twice = 1 if is_prompt or model.architecture != "encoder-decoder" else 2
    return {
        "num_virtual_tokens": adapted.strategy.options.length,
        "num_transformer_submodules": twice,
        "num_attention_heads": model.num_heads if is_prompt else model.num_kv_heads,
        "token_dim": model.token_embedding_size
        if is_prompt
        else model.num_kv_heads * model.head_dim,
        "num_layers": twice * model.num_output_layers,
    }


def pack_virtual_tokens(network: LanguageNetwork, kind: str, rows: Tensor) -> Tensor:
    """Convert the tensor of a prompt or a prefix, (P, …), to PEFT's format."""
    model = require_transformer_config(network.config)
    if kind == "prompt":  # PEFT inserts it after the scaling of embeddings
        return rows * model.hidden_size**0.5 if model.embedding_scale else rows
    if model.architecture != "encoder-decoder":
        return rows
    pairs = rows.unflatten(1, (model.num_output_layers, -1))
    return torch.stack([pairs, torch.zeros_like(pairs)], dim=2).flatten(1)


# --- reading


def parse_peft_config(
    network: LanguageNetwork, config: Mapping[str, Any], shapes: Shapes
) -> Strategy:
    """Convert a PEFT config to a strategy; `shapes` are by the names of `from_peft_names`."""
    known = {row.peft: name for name, row in STRATEGIES.items() if row.peft}
    if config.get("peft_type") not in known:
        raise InputError(
            f"the adapter type {config.get('peft_type')!r} is not supported; known types are "
            f"{', '.join(known)}"
        )
    for key, value in config.items():
        allowed = ALLOWED_VALUES.get(key)
        if not (value in allowed if allowed else key in IGNORED_KEYS or not value):
            raise InputError(f"an adapter with {key} = {value!r} is not supported")
    name, family = known[config["peft_type"]], family_in_peft(network)
    if name == "prefix" and not family.takes_prefix:
        raise MismatchError("PEFT ignores a prefix in this architecture, so it has no meaning")
    return strategy_from_options(name, _OPTIONS[name](network, config, shapes))


def _lora(network: LanguageNetwork, config: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    suffix = f".{MATRICES['a']}"
    return {
        "rank": config.get("r", 8),
        "alpha": config.get("lora_alpha", 8),
        "dropout": config.get("lora_dropout", 0.0),
        "rslora": config.get("use_rslora", False),
        "dora": config.get("use_dora", False),
        "targets": [
            target.path for target in target_modules(network) if target.theirs + suffix in shapes
        ],
    }


def _ia3(network: LanguageNetwork, config: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Factors of outputs are stored as a column, factors of inputs as a row."""
    found = {
        target.path: shapes.get(f"{target.theirs}.{FACTORS}", ())
        for target in target_modules(network)
    }
    return {
        "targets": [path for path, shape in found.items() if shape[1:] == (1,)],
        "inputs": [path for path, shape in found.items() if shape[:1] == (1,)],
    }


def _prompt(network: LanguageNetwork, config: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    return {"length": config.get("num_virtual_tokens")}


def _prefix(network: LanguageNetwork, config: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    side = "decoder" if network.config.has_decoder else "encoder"
    return {"length": config.get("num_virtual_tokens"), "where": [side]}


_OPTIONS = {"lora": _lora, "ia3": _ia3, "prompt": _prompt, "prefix": _prefix}


def unpack_virtual_tokens(
    network: LanguageNetwork, kind: str, rows: Tensor, config: Mapping[str, Any]
) -> Tensor:
    """Undo `pack_virtual_tokens`, also for files that PEFT wrote."""
    model = require_transformer_config(network.config)
    layers = model.num_output_layers
    if rows.dim() != 2:
        raise MismatchError(f"{TOKENS} has {rows.dim()} dimensions, not two")
    if kind == "prompt":  # for an encoder-decoder PEFT stores two and uses the first
        rows = rows[: config["num_virtual_tokens"]]
        return rows / model.hidden_size**0.5 if model.embedding_scale else rows
    pairs = int(config.get("num_layers") or layers)
    if model.architecture != "encoder-decoder" or rows.shape[1] % max(pairs, 1):
        return rows
    if pairs < layers:
        raise MismatchError(f"its prefix has {pairs} layers, but the decoder has {layers}")
    used = torch.arange(layers) * 2 % pairs
    return rows.unflatten(1, (pairs, -1))[:, used].flatten(1)
