"""ALBERT and RemBERT: encoders with factorized embeddings (Lan et al. 2020, Chung et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

from firth.formats.huggingface.bert import BERT, DEFAULTS, ENDS, FIELDS, FIXED, NAMES
from firth.formats.huggingface.family import config_fields, masked_head, token_ids
from firth.formats.huggingface.label_heads import bert_heads

LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
TABLES = {name: theirs for name, theirs in NAMES.items() if "blocks" not in name}
PROJECTED = {"encoder.embedding.project": "encoder.embedding_hidden_mapping_in"}

ALBERT = replace(
    BERT,
    name="albert",
    classes={
        "AlbertForPreTraining": ("language", "pooler", "pair"),
        "AlbertForMaskedLM": ("language",),
        "AlbertModel": ("pooler",),
    },
    prefix="albert.",
    names={
        **TABLES,
        **PROJECTED,
        "encoder.blocks.0.attention.qkv": f"{LAYER}.attention.{{query,key,value}}",
        "encoder.blocks.0.attention.output": f"{LAYER}.attention.dense",
        "encoder.blocks.0.attention_norm.outer": f"{LAYER}.attention.LayerNorm",
        "encoder.blocks.0.feed_forward.up": f"{LAYER}.ffn",
        "encoder.blocks.0.feed_forward.down": f"{LAYER}.ffn_output",
        "encoder.blocks.0.feed_forward_norm.outer": f"{LAYER}.full_layer_layer_norm",
        "heads.pooler.dense": "pooler",
    },
    head_names={
        **masked_head(
            "predictions.dense",
            "predictions.LayerNorm",
            "predictions.bias",
            "predictions.decoder.weight",
        ),
        "heads.pair.dense": "sop_classifier.classifier",
    },
    task_heads=bert_heads("Albert"),
    fixed={**FIXED, "share_layers": True},
    fields=FIELDS | ENDS | config_fields("embedding_size"),
    defaults={**DEFAULTS, "hidden_act": "gelu_new", **token_ids(bos=2, eos=3)},
    required={"num_hidden_groups": 1, "inner_group_num": 1, "position_embedding_type": "absolute"},
    copies={"predictions.decoder.bias": "predictions.bias"},
    takes_prefix=False,
)

REMBERT = replace(
    BERT,
    name="rembert",
    classes={"RemBertForMaskedLM": ("language", "pooler"), "RemBertModel": ("pooler",)},
    prefix="rembert.",
    names={**NAMES, **PROJECTED},
    head_names=masked_head(
        "cls.predictions.dense",
        "cls.predictions.LayerNorm",
        "cls.predictions.decoder.bias",
        "cls.predictions.decoder.weight",
    ),
    task_heads=bert_heads("RemBert"),
    fields=FIELDS
    | ENDS
    | config_fields("embedding_size=input_embedding_size output_embedding_size"),
    defaults={**DEFAULTS, "tie_word_embeddings": False, **token_ids(bos=312, eos=313)},
    copies={},
    takes_prefix=False,
)
