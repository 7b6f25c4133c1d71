"""ALBERT and RemBERT: encoders with factorized embeddings (Lan et al. 2020, Chung et al. 2021)."""

from __future__ import annotations

from firth.formats.huggingface.bert import FIELDS, FIXED, NAMES, REQUIRED
from firth.formats.huggingface.family import ModelFamily
from firth.formats.huggingface.label_heads import bert_heads

LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
TABLES = {name: theirs for name, theirs in NAMES.items() if "blocks" not in name}
PROJECTED = {"encoder.embedding.project": "encoder.embedding_hidden_mapping_in"}
ENDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id"}

ALBERT = ModelFamily(
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
        "heads.language.transform": "predictions.dense",
        "heads.language.norm": "predictions.LayerNorm",
        "heads.language.bias": "predictions.bias",
        "heads.language.weight": "predictions.decoder.weight",
        "heads.pair.dense": "sop_classifier.classifier",
    },
    task_heads=bert_heads("Albert"),
    fixed={**FIXED, "share_layers": True},
    fields=FIELDS | ENDS | {"embedding_size": "embedding_size"},
    defaults={
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-12,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    required={"num_hidden_groups": 1, "inner_group_num": 1, "position_embedding_type": "absolute"},
    ignored=r"position_ids$",
    copies={"predictions.decoder.bias": "predictions.bias"},
)

REMBERT = ModelFamily(
    name="rembert",
    classes={"RemBertForMaskedLM": ("language", "pooler"), "RemBertModel": ("pooler",)},
    prefix="rembert.",
    names={**NAMES, **PROJECTED},
    head_names={
        "heads.language.transform": "cls.predictions.dense",
        "heads.language.norm": "cls.predictions.LayerNorm",
        "heads.language.bias": "cls.predictions.decoder.bias",
        "heads.language.weight": "cls.predictions.decoder.weight",
    },
    task_heads=bert_heads("RemBert"),
    fixed=FIXED,
    fields=FIELDS
    | ENDS
    | {"embedding_size": "input_embedding_size", "output_embedding_size": "output_embedding_size"},
    defaults={
        "layer_norm_eps": 1e-12,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 312,
        "eos_token_id": 313,
    },
    required=REQUIRED,
    ignored=r"position_ids$",
)
