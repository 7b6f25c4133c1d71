"""Load models from GGUF files: Llama, Mistral, Qwen 2 and 3, Gemma 3.

The architectures are Hugging Face families with llama.cpp's names. llama.cpp permutes or shifts
some weights; that is undone on loading.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth.formats.gguf_blocks import PLAIN
from firth.formats.gguf_file import GgufFile, GgufWeights, open_gguf
from firth.formats.huggingface.directory import WeightSource, network_with_weights
from firth.formats.huggingface.family import ModelFamily, token_ids
from firth.formats.huggingface.gemma import GEMMA3
from firth.formats.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from firth.formats.huggingface.rope import FULL, SLIDING
from firth.formats.tokenizers.gguf import adds_bos, gguf_tokenizer, token_roles
from firth.models.language_model import LanguageNetwork
from firth.models.positions import Rotary
from firth.models.transformer_config import RopeScaling, TransformerConfig
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError

NAMES = {
    "tokens": "token_embd",
    "decoder.blocks.*.attention_norm.before": "blk.*.attn_norm",
    "decoder.blocks.*.attention.qkv": "blk.*.{attn_q,attn_k,attn_v}",
    "decoder.blocks.*.attention.output": "blk.*.attn_output",
    "decoder.blocks.*.feed_forward_norm.before": "blk.*.ffn_norm",
    "decoder.blocks.*.feed_forward.up": "blk.*.{ffn_gate,ffn_up}",
    "decoder.blocks.*.feed_forward.down": "blk.*.ffn_down",
    "decoder.final_norm": "output_norm",
}
QK_NORMS = {
    "decoder.blocks.*.attention.query_norm": "blk.*.attn_q_norm",
    "decoder.blocks.*.attention.key_norm": "blk.*.attn_k_norm",
}
NORMS_AFTER = {
    "decoder.blocks.*.attention_norm.after": "blk.*.post_attention_norm",
    "decoder.blocks.*.feed_forward_norm.after": "blk.*.post_ffw_norm",
}
TABLE, OUTPUT, FREQUENCIES = "token_embd.weight", "output.weight", "rope_freqs.weight"
LLAMA3 = 8192  # context of Llama 3 before its scaling

NEEDED = {  # Hugging Face's config field -> llama.cpp's
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
OPTIONAL = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


@dataclass(frozen=True, kw_only=True)
class GgufArchitecture:
    """An architecture of llama.cpp and its Hugging Face family."""

    family: ModelFamily
    windowed: ModelFamily | None = None  # the family if the file has a sliding window
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    turned: bool = False  # rows of query and key projections are permuted
    raised: bool = False  # norm weights are stored plus one
    alternates: bool = False  # layers with and without a sliding window alternate


ARCHITECTURES = {
    "llama": GgufArchitecture(family=LLAMA, windowed=MISTRAL, turned=True),
    "qwen2": GgufArchitecture(family=QWEN2),
    "qwen3": GgufArchitecture(family=QWEN3, names={**NAMES, **QK_NORMS}),
    "gemma3": GgufArchitecture(
        family=GEMMA3, names={**NAMES, **QK_NORMS, **NORMS_AFTER}, raised=True, alternates=True
    ),
}


def read_gguf(
    path: Path, *, dtype: torch.dtype | None = None
) -> tuple[LanguageNetwork, Tokenizer | None]:
    """Load the network and the tokenizer of a file.

    Weights are converted to `dtype`; by default to the common dtype of all matrices if they are not
    quantized, else to fp32.
    """
    file = open_gguf(path)
    try:
        name = _architecture(file)
        config, family = _config(file, name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{path} has an invalid value ({error!r}).") from error
    tokenizer = gguf_tokenizer(file.values, path)
    source = WeightSource(_weights(file, ARCHITECTURES[name], config), path, "metadata")
    return network_with_weights(config, family, source, dtype or _own_dtype(file)), tokenizer


def _architecture(file: GgufFile) -> str:
    name = file.values.get("general.architecture")
    if not isinstance(name, str):
        raise InputError("it has no general.architecture.")
    if name not in ARCHITECTURES:
        raise InputError(
            f"the architecture {name[:80]!r} is not supported; known are "
            f"{', '.join(ARCHITECTURES)}."
        )
    if _number(file, name, "expert_count", 0):
        raise InputError("it is a mixture of experts, which is not supported.")
    return name


def _number(file: GgufFile, architecture: str, name: str, default: Any = None) -> Any:
    """Return a metadata value that must be a number."""
    value = file.values.get(f"{architecture}.{name}", default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InputError(f"{architecture}.{name} is not a single number.")
    return value


def _config(file: GgufFile, name: str) -> tuple[TransformerConfig, ModelFamily]:
    """Return our config, and the family with llama.cpp's parameter names."""
    found = {key: _number(file, name, theirs) for key, theirs in (NEEDED | OPTIONAL).items()}
    if missing := [f"{name}.{theirs}" for key, theirs in NEEDED.items() if found[key] is None]:
        raise InputError(f"it lacks {', '.join(missing)}.")
    if TABLE not in file.entries:
        raise InputError(f"it lacks {TABLE}.")
    theirs = {key: value for key, value in found.items() if value is not None}
    row, width = ARCHITECTURES[name], _head_width(file, name, theirs)
    theirs |= _tokens(file) | {
        "vocab_size": file.entries[TABLE].shape[0],
        "head_dim": width,
        "rope_scaling": _scaling(file, name, width),
        "tie_word_embeddings": OUTPUT not in file.entries,
    }
    if row.alternates:
        theirs |= _alternating(file, name, theirs)
    family = row.windowed if row.windowed and theirs.get("sliding_window") else row.family
    config = family.config(theirs)
    return config, replace(
        family,
        prefix="",
        names=row.names,
        head_names={"heads.language.weight": OUTPUT},
        ignored=re.escape(FREQUENCIES),
    )


def _head_width(file: GgufFile, name: str, theirs: Mapping[str, Any]) -> int:
    """Return the head size, which must equal the value size and the rotary dimensions."""
    width = theirs.get("head_dim") or theirs["hidden_size"] // theirs["num_attention_heads"]
    for other in ("attention.value_length", "rope.dimension_count"):
        if _number(file, name, other, width) != width:
            raise InputError(
                f"{name}.{other} is {_number(file, name, other)}, but the head size is {width}; "
                "only models in which they are equal are supported."
            )
    return int(width)


def _tokens(file: GgufFile) -> dict[str, Any]:
    """Return the special token ids, if the file has a tokenizer."""
    if "tokenizer.ggml.tokens" not in file.values:
        return token_ids(bos=None, eos=None, pad=None)
    roles = token_roles(file.values)
    begin = roles.get("bos") if adds_bos(file.values) else None
    return token_ids(bos=begin, eos=roles.get("eos"), pad=roles.get("pad"))


def _scaling(file: GgufFile, name: str, width: int) -> dict[str, Any] | None:
    """Return the scaling of rotary frequencies as in Hugging Face's configs, None if none."""
    number = partial(_number, file, name)
    kind = file.values.get(f"{name}.rope.scaling.type", "linear")
    factor = number("rope.scaling.factor", number("rope.scale_linear", 1.0))
    original = number("rope.scaling.original_context_length")
    if FREQUENCIES in file.entries and not bool((GgufWeights(file)[FREQUENCIES] == 1).all()):
        base = number("rope.freq_base", 10_000.0)
        return _llama3(GgufWeights(file)[FREQUENCIES].float(), base, width, original or LLAMA3)
    if kind == "none" or (kind == "linear" and factor in (0, 1)):
        return None
    more = {"original_max_position_embeddings": original} if original else {}
    if kind == "yarn":
        more |= {
            "beta_fast": number("rope.scaling.yarn_beta_fast"),
            "beta_slow": number("rope.scaling.yarn_beta_slow"),
            # llama.cpp's converter stores the config's attention_factor.
            "attention_factor": number("rope.scaling.yarn_attn_factor"),
        }
    return {"rope_type": kind, "factor": factor, **more}


def _llama3(factors: Tensor, base: float, width: int, original: int) -> dict[str, Any]:
    """Find Llama 3's scaling in the divisors of the frequencies, which are all that is stored."""
    factor = float(factors.max())
    scaling = RopeScaling(kind="llama3", factor=factor, original_positions=original)
    plain, scaled = (
        Rotary(width, base, one).frequencies(factors.device) for one in (None, scaling)
    )
    if factors.shape != plain.shape or not torch.allclose(plain / factors, scaled, rtol=1e-4):
        raise InputError(f"its {FREQUENCIES} are not those of Llama 3; no others are supported.")
    return {
        "rope_type": scaling.kind,
        "factor": factor,
        "low_freq_factor": scaling.slow,
        "high_freq_factor": scaling.fast,
        "original_max_position_embeddings": original,
    }


def _alternating(file: GgufFile, name: str, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config fields of Gemma 3 that are not in the file but in llama.cpp's code."""
    width, heads = theirs["hidden_size"], theirs["num_attention_heads"]
    # The 27B model (62 layers) scales attention by the square root of hidden_size / num_heads.
    under_root = width // heads if theirs["num_hidden_layers"] == 62 else theirs["head_dim"]
    kinds: dict[str, Any] = {}
    match file.values.get(f"{name}.attention.sliding_window_pattern"):
        case int(every):
            kinds["sliding_window_pattern"] = every
        case np.ndarray() as listed if len(listed) == theirs["num_hidden_layers"]:
            kinds["layer_types"] = [SLIDING if narrow else FULL for narrow in listed.tolist()]
        case np.ndarray():
            raise InputError("its sliding_window_pattern does not have one entry per layer.")
    return {"query_pre_attn_scalar": under_root, **kinds}


def _weights(file: GgufFile, row: GgufArchitecture, config: TransformerConfig) -> GgufWeights:
    """Return the tensors with llama.cpp's changes undone."""
    heads = {".attn_q.weight": config.num_heads, ".attn_k.weight": config.num_kv_heads}
    turned = {
        name: count
        for name, entry in file.entries.items()
        for ending, count in heads.items()
        if name.endswith(ending) and entry.shape[0] % (2 * count) == 0
    }
    raised = frozenset(name for name in file.entries if name.endswith("norm.weight"))
    return GgufWeights(
        file, turned if row.turned else {}, raised if row.raised else frozenset[str]()
    )


def _own_dtype(file: GgufFile) -> torch.dtype:
    """Return the dtype that all matrices are stored in, or fp32 if they differ or are quantized."""
    kinds = {entry.kind.name for entry in file.entries.values() if len(entry.shape) > 1}
    return PLAIN.get(kinds.pop(), torch.float32) if len(kinds) == 1 else torch.float32
