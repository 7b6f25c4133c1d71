"""GGUF files of small networks, written as llama.cpp's converter writes them.

Names of tensors come from the `gguf` library, which knows them for every architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf")
quants = pytest.importorskip("gguf.quants")
Array = np.ndarray[Any, Any]
PLAIN = ("F32", "F16")
SPREAD = 0.1  # of weights
# Where a block has its scales, in half precision: those that the library cannot make itself.
SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S"), (0,)),
    **dict.fromkeys(("IQ2_S", "IQ4_XS"), (0,)),
}


def write(
    path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, Any]
) -> Path:
    """A file with these values (None: left out) and tensors: (array, name of its kind)."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in values.items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }.get(type(value))
        if add is not None:
            add(name, value)
    for name, (array, kind) in tensors.items():
        raw = None if kind in PLAIN else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, np.ascontiguousarray(array), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def letters(size: int) -> dict[str, Any]:
    """The values of a byte-level tokenizer: the bytes, a few merges, and two special tokens."""
    spelt = [chr(byte) for byte in range(33, 127)]
    tokens = ["<|begin|>", "<|end|>", *spelt, "Ġ", "Ċ", "he", "Ġt", "Ġthe"]
    assert size >= len(tokens)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), size)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (size - 2),
        "tokenizer.ggml.merges": ["h e", "Ġ t", "Ġt he"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def described(config: Any, architecture: str) -> dict[str, Any]:
    """What the converter says of a configuration of `transformers`."""
    rope = config.rope_parameters
    base = rope.get("full_attention", rope)["rope_theta"]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values = {
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": width,
        "attention.value_length": width,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(base),
    }
    if (kind := rope.get("rope_type", "default")) != "default":
        values["rope.scaling.original_context_length"] = rope.get(
            "original_max_position_embeddings", config.max_position_embeddings
        )
    if kind in ("linear", "yarn"):
        values |= {"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]}
    if "attention_factor" in rope:
        values["rope.scaling.yarn_attn_factor"] = rope["attention_factor"]
    if architecture == "llama":
        values |= {"rope.dimension_count": width, "vocab_size": config.vocab_size}
    if architecture == "gemma3":
        values["attention.sliding_window"] = config.sliding_window
    return {f"{architecture}.{name}": value for name, value in values.items()}


def turned(array: Array, heads: int) -> Array:
    """Rows of queries and keys as llama.cpp wants Llama's: those of the halves in turn."""
    halves = array.reshape(heads, 2, len(array) // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(array.shape)


def unturned(array: Array, heads: int) -> Array:
    pairs = array.reshape(heads, len(array) // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(array.shape)


def encoded(array: Array, kind: str, random: np.random.Generator) -> Array:
    """An array in blocks; where the library can only read a kind, blocks of random bytes."""
    if kind not in SCALES:
        return quants.quantize(array, gguf.GGMLQuantizationType[kind])
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (array.size // numbers, size), dtype=np.uint8)
    scale = random.uniform(0.5, 1.0, len(blocks))
    for _ in range(2):  # the second time, so that the numbers spread as they should
        for place in SCALES[kind]:
            blocks[:, place : place + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
        made = quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
        scale *= SPREAD / made.std()
    return blocks.reshape(*array.shape[:-1], -1)


def write_reference(
    path: Path, architecture: str, reference: Any, kind: str = "F32", **more: Any
) -> Path:
    """A network of `transformers` as a file; it becomes what was left of it by the rounding."""
    config, random = reference.config, np.random.default_rng(0)
    heads = {
        "q_proj.weight": config.num_attention_heads,
        "k_proj.weight": config.num_key_value_heads,
    }
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = {}
    for name, tensor in reference.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        module, _, what = name.rpartition(".")
        array = tensor.numpy().copy()
        count = next((n for end, n in heads.items() if name.endswith(end)), 0)
        if architecture == "llama" and count:
            array = turned(array, count)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            array = array + 1
        own = kind if array.ndim > 1 else "F32"
        stored = encoded(array, own, random)
        tensors[f"{names.get_name(module)}.{what}"] = (stored, own)
        if own != "F32":
            numbers = quants.dequantize(stored, gguf.GGMLQuantizationType[own])
            numbers = unturned(numbers, count) if architecture == "llama" and count else numbers
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(numbers.copy()))
    if config.rope_parameters.get("rope_type") == "llama3":
        scaled = reference.model.rotary_emb.inv_freq
        base, steps = config.rope_parameters["rope_theta"], torch.arange(len(scaled)) / len(scaled)
        tensors["rope_freqs.weight"] = ((base**-steps / scaled).numpy(), "F32")
    values = described(config, architecture) | letters(config.vocab_size)
    return write(path, architecture, values | more, tensors)
