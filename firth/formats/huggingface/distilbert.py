"""DistilBERT: BERT without segment embeddings, with other names (Sanh et al. 2019)."""

from __future__ import annotations

from firth.formats.huggingface.bert import FIXED
from firth.formats.huggingface.family import ModelFamily, config_fields, masked_head
from firth.formats.huggingface.label_heads import roberta_heads

DISTILBERT = ModelFamily(
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
    head_names=masked_head(
        "vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight"
    ),
    task_heads=roberta_heads(
        "DistilBert", "pre_classifier", "classifier", activation="relu", choose=True
    ),
    fixed={**FIXED, "norm_eps": 1e-12},
    fields=config_fields(
        "vocab_size hidden_size=dim num_layers=n_layers num_heads=n_heads ffn_size=hidden_dim "
        "max_positions=max_position_embeddings activation dropout attention_dropout "
        "init_std=initializer_range pad_token_id tie_embeddings=tie_word_embeddings"
    ),
    defaults={"activation": "gelu", "tie_word_embeddings": True, "pad_token_id": 0},
    ignored=r"position_ids$",
)
