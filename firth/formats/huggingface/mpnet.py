"""MPNet: learned positions and T5's relative attention bias (Song et al. 2020)."""

from __future__ import annotations

from dataclasses import replace

from firth.formats.huggingface.bert import NAMES, ROBERTA
from firth.formats.huggingface.label_heads import roberta_heads

OFFSET = 2  # position ids start at pad_token_id + 1, and pad_token_id is always 1


MPNET = replace(
    ROBERTA,
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
    task_heads=roberta_heads("MPNet", "classifier.dense", "classifier.out_proj", activation="tanh"),
    fixed={
        **ROBERTA.fixed,
        "position_offset": OFFSET,
        "relative_attention": "bias",
        "relative_buckets": 32,
        "relative_max_distance": 128,
    },
    fields={name: theirs for name, theirs in ROBERTA.fields.items() if name != "num_segments"},
    required={"relative_attention_num_buckets": 32},
    read=lambda theirs: {"max_positions": theirs["max_position_embeddings"] - OFFSET},
    takes_prefix=False,
)
