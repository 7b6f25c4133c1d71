"""MPNet: learned positions and T5's relative attention bias (Song et al. 2020)."""

from __future__ import annotations

from typing import Any

from firth.formats.huggingface.bert import FIELDS, FIXED, NAMES
from firth.formats.huggingface.family import ModelFamily
from firth.formats.huggingface.label_heads import roberta_heads
from firth.models.config import ModelConfig

OFFSET = 2  # position ids start at pad_token_id + 1, and pad_token_id is always 1


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    return {"max_positions": theirs["max_position_embeddings"] - OFFSET}


def _write(config: ModelConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.max_positions + OFFSET}


MPNET = ModelFamily(
    name="mpnet",
    classes={"MPNetForMaskedLM": ("language", "pooler"), "MPNetModel": ("pooler",)},
    prefix="mpnet.",
    names={
        **NAMES,
        "encoder.relative": "encoder.relative_attention_bias",
        "encoder.blocks.*.attention.qkv": "encoder.layer.*.attention.attn.{q,k,v}",
        "encoder.blocks.*.attention.output": "encoder.layer.*.attention.attn.o",
        "encoder.blocks.*.attention_norm.outer": "encoder.layer.*.attention.LayerNorm",
    },
    head_names={
        "heads.language.transform": "lm_head.dense",
        "heads.language.norm": "lm_head.layer_norm",
        "heads.language.bias": "lm_head.bias",
        "heads.language.weight": "lm_head.decoder.weight",
    },
    task_heads=roberta_heads("MPNet", "classifier.dense", "classifier.out_proj", activation="tanh"),
    fixed={
        **FIXED,
        "head_activation": "gelu",
        "position_offset": OFFSET,
        "relative_attention": "bias",
        "relative_buckets": 32,
        "relative_max_distance": 128,
    },
    fields={name: theirs for name, theirs in FIELDS.items() if name != "num_segments"}
    | {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id"},
    defaults={
        "layer_norm_eps": 1e-12,
        "tie_word_embeddings": True,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    required={"relative_attention_num_buckets": 32},
    ignored=r"position_ids$",
    copies={"lm_head.decoder.bias": "lm_head.bias"},
    read=_read,
    write=_write,
)
