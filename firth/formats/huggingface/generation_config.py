"""`generation_config.json`: the special tokens and decoding defaults of a generative model.

Its special tokens replace those of `config.json`, as in `transformers`. All other fields (sampling
defaults, length limits) are kept for `save`, but not applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from firth.formats.huggingface.family import read_eos
from firth.formats.json_files import read_object
from firth.models.config import ModelConfig
from firth.utils.errors import InputError

GENERATION_CONFIG = "generation_config.json"
AnyConfig = TypeVar("AnyConfig", bound=ModelConfig)
ROLES = ("pad", "bos", "eos", "decoder_start", "forced_bos", "forced_eos")


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Read the generation config of a directory; empty if there is none."""
    return read_object(folder / GENERATION_CONFIG)


def with_special_tokens(config: AnyConfig, theirs: Mapping[str, Any]) -> AnyConfig:
    """Return a config with the special tokens of a generation config that are in the vocabulary.

    The first EOS token, which ends a training text, stays first if it is among them.
    """
    ours: dict[str, Any] = {}
    for name in (f"{role}_token_id" for role in ROLES):
        value = theirs.get(name)
        ids = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if any(type(id) not in (int, type(None)) for id in ids):
            raise InputError(f"{name} is a token id, not {value!r}.")
        if known := [id for id in ids if id is not None and 0 <= id < config.vocab_size]:
            ours[name] = known if name == "eos_token_id" else known[0]
    if "eos_token_id" in ours:
        ids = sorted(ours["eos_token_id"], key=lambda id: id != config.eos_token_id)
        ours |= read_eos(ids)
    return replace(config, **ours)


def generation_values(config: ModelConfig, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the file: the known ones, with the special tokens of the config."""
    if known and with_special_tokens(config, known) == config:
        return dict(known)
    eos = {"eos_token_id": list(config.eos_token_ids)} if config.extra_eos_token_ids else {}
    return {**known, **config.special_token_ids, **eos}
