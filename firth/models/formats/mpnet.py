"""MPNet: learned positions and T5's bias of distances together (Song et al. 2020)."""

from __future__ import annotations

from typing import Any

from firth.models.config import ModelConfig
from firth.models.formats.bert import FIELDS, FIXED, NAMES
from firth.models.formats.family import Family
from firth.models.formats.labels import layered

OFFSET = 2  # positions count from behind the padding token's number, which is always 1


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    return {"context": theirs["max_position_embeddings"] - OFFSET}


def _write(config: ModelConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.context + OFFSET}


MPNET = Family(
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
    task_heads=layered("MPNet", "classifier.dense", "classifier.out_proj", activation="tanh"),
    fixed={
        **FIXED,
        "head_activation": "gelu",
        "position_offset": OFFSET,
        "relative": "bias",
        "buckets": 32,
        "distance": 128,
    },
    fields={name: theirs for name, theirs in FIELDS.items() if name != "segments"}
    | {"begin_id": "bos_token_id", "end_id": "eos_token_id"},
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
