"""Load and save sentence encoders: a directory with `modules.json`, as in sentence-transformers.

It lists the modules that compute the embedding of a text: a network, pooling, and optionally
projections and norms. Each module has its own folder; the network may also be in the root.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from firth.formats.json_files import read_json, read_object
from firth.formats.safetensors import WHOLE, open_weights, write_weights
from firth.models.pooling import POOLINGS
from firth.utils.errors import InputError, MismatchError
from firth.utils.files import write_json

MODULES, SETTINGS, PROMPTS = (
    *("modules.json", "sentence_bert_config.json"),
    "config_sentence_transformers.json",
)
FOLDER = re.compile(r"(?!\.\.?$)[\w. -]{0,200}")  # a plain name in the directory itself
OURS = {"mean_sqrt_len_tokens": "mean_sqrt_len", "lasttoken": "last"}  # theirs -> ours
FLAGS = {  # the poolings in older files
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
ACTIVATIONS: dict[str, type[nn.Module]] = {
    name: getattr(nn, name)
    for name in ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "ELU", "LeakyReLU", "Mish")
}
# The only supported values of these settings.
REQUIRED: dict[str, Any] = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "processing_kwargs": {},
}


class Dense(nn.Module):
    """A linear layer with an activation, optionally residual, on the pooled vector."""

    def __init__(self, inputs: int, outputs: int, bias: bool, activation: str, residual: bool):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation = ACTIVATIONS[activation]()
        self.adds = residual
        project = residual and inputs != outputs
        self.residual = nn.Linear(inputs, outputs, bias=False) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.linear(x))
        return out + self.residual(x) if self.adds else out


class Scale(nn.Module):
    """A layer norm on the pooled vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.norm(x)
        return scaled


class Normalize(nn.Module):
    """Scale vectors to length one, so that their dot product is the cosine similarity."""

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, dim=-1)


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderConfig:
    """How the hidden states of a text become one embedding."""

    pooling: tuple[str, ...] = ("mean",)  # several are concatenated
    steps: tuple[nn.Module, ...] = ()  # modules after pooling: Dense, Scale, Normalize
    folder: str = ""  # of the network in the directory
    longest: int | None = None  # maximum number of tokens of a text, the rest is truncated
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    prompt: str | None = None  # name of the default prompt
    pools_prompt: bool = True  # False: the tokens of the prompt are not pooled

    def width(self, network: int) -> int:
        """Return the embedding size, given the hidden size; raise `MismatchError` if invalid."""
        wide = network * len(self.pooling)
        for step in self.steps:
            if isinstance(step, Dense | Scale):
                first = step.linear if isinstance(step, Dense) else step.norm
                inputs = first.weight.shape[-1]
                if inputs != wide:
                    raise MismatchError(
                        f"A projection of this sentence encoder takes vectors of size {inputs}, "
                        f"but pooling gives {wide} ({' + '.join(self.pooling)})."
                    )
                wide = first.weight.shape[0]
        return wide


def read_sentence(path: Path) -> SentenceEncoderConfig | None:
    """Read `modules.json` in a directory; None if there is no such file."""
    if not (path / MODULES).is_file():
        return None
    try:
        return _sentence(path)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"{path / MODULES}, or a file it names, has a value that cannot be right ({error!r})."
        ) from error


def _sentence(path: Path) -> SentenceEncoderConfig:
    modules = [(_kind(path, row), _folder(path, row["path"])) for row in read_json(path / MODULES)]
    if [kind for kind, _ in modules[:2]] != ["Transformer", "Pooling"]:
        raise InputError(
            f"{path / MODULES} does not begin with a Transformer and its Pooling, as every "
            "sentence encoder does that can be computed here."
        )
    network, pooling = (path / folder for _, folder in modules[:2])
    steps = [STEPS[kind](path / folder) for kind, folder in modules[2:]]
    settings = _settings(network)
    pooled = read_json(pooling / "config.json")
    prompts = read_object(path / PROMPTS)
    longest = settings.get("max_seq_length")
    return SentenceEncoderConfig(
        pooling=_modes(pooling / "config.json", pooled),
        steps=tuple(step.eval() for step in steps if step is not None),
        folder=modules[0][1],
        longest=None if longest is None else int(longest),
        lowercase=bool(settings.get("do_lower_case", False)),
        prompts={name: str(text) for name, text in (prompts.get("prompts") or {}).items() if text},
        prompt=prompts.get("default_prompt_name"),
        pools_prompt=bool(pooled.get("include_prompt", True)),
    )


def _kind(path: Path, row: Mapping[str, Any]) -> str:
    """Return the type of a module; its full name differs between versions."""
    library, _, kind = row["type"].partition(".")
    kind = kind.rpartition(".")[2]
    known = ("Transformer", "Pooling", *STEPS)
    if library != "sentence_transformers" or kind not in known:
        raise InputError(
            f"{path / MODULES} has a module of the type {row['type']!r}, which cannot be computed "
            f"here; known are {', '.join(known)}."
        )
    return kind


def _folder(path: Path, name: str) -> str:
    if not FOLDER.fullmatch(name):
        raise InputError(f"{path / MODULES} names {name!r:.80}, which is no folder beside it.")
    return name


def _settings(folder: Path) -> dict[str, Any]:
    """Read the settings of the network; older files have the family in their name."""
    found = sorted(folder.glob("sentence_*_config.json"), key=lambda file: file.name != SETTINGS)
    settings: dict[str, Any] = read_json(found[0]) if found else {}
    for name, wanted in REQUIRED.items():
        if settings.get(name, wanted) != wanted:
            raise InputError(
                f"{found[0]}: a sentence encoder with {name} = {settings[name]!r:.80} cannot be "
                f"computed here, only {wanted!r}."
            )
    config = read_object(folder / "config.json")
    if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
        raise InputError(
            f"{folder / 'config.json'} is of a decoder whose tokens see both ways, which cannot be "
            "computed here."
        )
    return settings


def _modes(file: Path, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the poolings, from a list of names or, in older files, from flags."""
    named = values.get("pooling_mode")
    if named is None:
        named = [key for key, on in values.items() if on is True and key.startswith("pooling_mode")]
        named = [FLAGS.get(key, key) for key in sorted(named, key=[*FLAGS, *named].index)]
    modes = [named] if isinstance(named, str) else list(named) or ["mean"]
    modes = [OURS.get(mode, mode) for mode in modes]
    for mode in modes:
        if mode not in POOLINGS:
            raise InputError(
                f"{file} asks for a pooling {mode!r}, which cannot be computed here; known are "
                f"{', '.join(POOLINGS)}."
            )
    return tuple(modes)


def _dense(folder: Path) -> nn.Module:
    values = read_json(folder / "config.json")
    activation = str(values.get("activation_function", "torch.nn.Tanh"))
    library, _, name = activation.rpartition(".")
    if not library.startswith("torch.nn") or name not in ACTIVATIONS:
        raise InputError(
            f"{folder / 'config.json'} has the activation {activation!r}, which is not known; "
            f"known are {', '.join(ACTIVATIONS)}."
        )
    size = values["in_features"], values["out_features"]
    with torch.device("meta"):  # allocated only if the file has weights of this size
        dense = Dense(*size, values.get("bias", True), name, values.get("use_residual", False))
    return _filled(dense, folder)


def _scale(folder: Path) -> nn.Module:
    with torch.device("meta"):
        scale = Scale(read_json(folder / "config.json")["dimension"])
    return _filled(scale, folder)


def _filled(module: nn.Module, folder: Path) -> nn.Module:
    """Load the weights of a module from its folder."""
    _refuse_tokens(folder)
    weights = open_weights(folder)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if shapes != {name: weights.shape(name) for name in weights}:
        raise MismatchError(f"{folder / WHOLE} does not hold what {folder / 'config.json'} says.")
    state = {name: torch.empty(shape) for name, shape in shapes.items()}
    for name, tensor in state.items():
        weights.copy_into(name, tensor)
    module.load_state_dict(state, assign=True)
    return module


def _normalize(folder: Path) -> nn.Module:
    _refuse_tokens(folder)
    return Normalize()


def _refuse_tokens(folder: Path) -> None:
    """Raise `InputError` for a module that works on single tokens, as in late interaction."""
    file = folder / "config.json"
    values = read_object(file)
    for name in ("module_input_name", "module_output_name"):
        if values.get(name) not in (None, "sentence_embedding"):
            raise InputError(
                f"{file} is a step for {values[name]!r:.80}; only one for whole texts can be "
                "computed here."
            )


STEPS: dict[str, Callable[[Path], nn.Module | None]] = {
    "Dense": _dense,
    "LayerNorm": _scale,
    "Normalize": _normalize,
    "Dropout": lambda folder: None,  # only in training
}


def write_sentence(sentence: SentenceEncoderConfig, path: Path, width: int) -> None:
    """Write the modules next to a network in the root, readable by all library versions."""
    kinds = ["Transformer", "Pooling", *(_their_kind(step) for step in sentence.steps)]
    folders = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    rows = [
        {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, folder) in enumerate(zip(kinds, folders, strict=True))
    ]
    for folder in folders:
        (path / folder).mkdir(parents=True, exist_ok=True)
    settings = {"max_seq_length": sentence.longest, "do_lower_case": sentence.lowercase}
    pooling: dict[str, Any] = {"word_embedding_dimension": width}
    pooling |= {flag: mode in sentence.pooling for flag, mode in FLAGS.items()}
    pooling |= {} if sentence.pools_prompt else {"include_prompt": False}
    if sentence.pooling != tuple(mode for mode in POOLINGS if mode in sentence.pooling):
        theirs = {ours: theirs for theirs, ours in OURS.items()}  # only newer files have an order
        pooling["pooling_mode"] = [theirs.get(mode, mode) for mode in sentence.pooling]
    write_json(path / folders[1] / "config.json", pooling)
    for folder, step in zip(folders[2:], sentence.steps, strict=True):
        if described := _described(step):
            write_json(path / folder / "config.json", described)
            write_weights(path / folder / WHOLE, step.state_dict())
    write_json(path / SETTINGS, settings)
    prompts = {"prompts": dict(sentence.prompts), "default_prompt_name": sentence.prompt}
    write_json(path / PROMPTS, prompts)
    write_json(path / MODULES, rows)


def _their_kind(step: nn.Module) -> str:
    return "LayerNorm" if isinstance(step, Scale) else type(step).__name__


def _described(step: nn.Module) -> dict[str, Any]:
    if isinstance(step, Scale):
        return {"dimension": step.norm.weight.shape[0]}
    if not isinstance(step, Dense):
        return {}
    activation = type(step.activation)
    return {
        "in_features": step.linear.in_features,
        "out_features": step.linear.out_features,
        "bias": step.linear.bias is not None,
        "activation_function": f"{activation.__module__}.{activation.__name__}",
        **({"use_residual": True} if step.adds else {}),
    }
