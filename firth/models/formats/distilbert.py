"""DistilBERT: BERT without segments, under other names (Sanh et al. 2019)."""

from __future__ import annotations

from firth.models.formats.bert import FIXED
from firth.models.formats.family import Family
from firth.models.formats.labels import layered

DISTILBERT = Family(
    name="distilbert",
    classes={"DistilBertForMaskedLM": ("language",), "DistilBertModel": ()},
    prefix="distilbert.",
    names={
        "tokens": "embeddings.word_embeddings",
        "encoder.embedding.positions": "embeddings.position_embeddings",
        "encoder.embedding.norm": "embeddings.LayerNorm",
        "encoder.blocks.*.attention.qkv": "transformer.layer.*.attention.{q_lin,k_lin,v_lin}",
        "encoder.blocks.*.attention.output": "transformer.layer.*.attention.out_lin",
        "encoder.blocks.*.attention_norm.outer": "transformer.layer.*.sa_layer_norm",
        "encoder.blocks.*.feed_forward.up": "transformer.layer.*.ffn.lin1",
        "encoder.blocks.*.feed_forward.down": "transformer.layer.*.ffn.lin2",
        "encoder.blocks.*.feed_forward_norm.outer": "transformer.layer.*.output_layer_norm",
    },
    head_names={
        "heads.language.transform": "vocab_transform",
        "heads.language.norm": "vocab_layer_norm",
        "heads.language.bias": "vocab_projector.bias",
        "heads.language.weight": "vocab_projector.weight",
    },
    task_heads=layered(
        "DistilBert", "pre_classifier", "classifier", activation="relu", choose=True
    ),
    fixed={**FIXED, "norm_eps": 1e-12},
    fields={
        "vocabulary": "vocab_size",
        "width": "dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "inner": "hidden_dim",
        "context": "max_position_embeddings",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "spread": "initializer_range",
        "padding_id": "pad_token_id",
        "tied": "tie_word_embeddings",
    },
    defaults={"activation": "gelu", "tie_word_embeddings": True, "pad_token_id": 0},
    ignored=r"position_ids$",
)
