"""BERT-like families: post-norm encoders with learned positions.

BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2020) and ELECTRA
(Clark et al. 2020).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firth.formats.huggingface.family import ModelFamily, config_fields, masked_head, token_ids
from firth.formats.huggingface.label_heads import TaskHead, bert_heads, roberta_heads
from firth.models.transformer_config import TransformerConfig

BLOCKS = {
    "encoder.blocks.*.attention.qkv": "encoder.layer.*.attention.self.{query,key,value}",
    "encoder.blocks.*.attention.output": "encoder.layer.*.attention.output.dense",
    "encoder.blocks.*.attention_norm.outer": "encoder.layer.*.attention.output.LayerNorm",
    "encoder.blocks.*.feed_forward.up": "encoder.layer.*.intermediate.dense",
    "encoder.blocks.*.feed_forward.down": "encoder.layer.*.output.dense",
    "encoder.blocks.*.feed_forward_norm.outer": "encoder.layer.*.output.LayerNorm",
}

NAMES = {
    "tokens": "embeddings.word_embeddings",
    "encoder.embedding.positions": "embeddings.position_embeddings",
    "encoder.embedding.segments": "embeddings.token_type_embeddings",
    "encoder.embedding.norm": "embeddings.LayerNorm",
    **BLOCKS,
    "heads.pooler.dense": "pooler.dense",
}

FIELDS = config_fields(
    "vocab_size hidden_size num_layers=num_hidden_layers num_heads=num_attention_heads "
    "ffn_size=intermediate_size max_positions=max_position_embeddings num_segments=type_vocab_size "
    "activation=hidden_act norm_eps=layer_norm_eps dropout=hidden_dropout_prob "
    "attention_dropout=attention_probs_dropout_prob init_std=initializer_range pad_token_id "
    "tie_embeddings=tie_word_embeddings"
)
ENDS = config_fields("bos_token_id eos_token_id")
DEFAULTS = {"tie_word_embeddings": True, "layer_norm_eps": 1e-12, **token_ids(pad=0)}

REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}

FIXED = {
    "architecture": "encoder",
    "position_embedding": "learned",
    "norm_position": "post",
    "head_transform": True,
    "head_bias": "trained",
    "initialization": "truncated",
}

HEAD = masked_head(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.bias",
    "cls.predictions.decoder.weight",
)
ROBERTA_HEAD = masked_head(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.weight"
)

BERT = ModelFamily(
    name="bert",
    classes={
        "BertForPreTraining": ("language", "pooler", "pair"),
        "BertForMaskedLM": ("language",),
        "BertForNextSentencePrediction": ("pooler", "pair"),
        "BertModel": ("pooler",),
    },
    prefix="bert.",
    names=NAMES,
    head_names=HEAD | {"heads.pair.dense": "cls.seq_relationship"},
    task_heads=bert_heads("Bert"),
    fixed=FIXED,
    fields=FIELDS,
    defaults=DEFAULTS,
    required=REQUIRED,
    ignored=r"position_ids$",
    copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    takes_prefix=True,
)


def _read_offset(theirs: dict[str, Any]) -> dict[str, Any]:
    """Position ids start at pad_token_id + 1."""
    offset = theirs["pad_token_id"] + 1
    return {"position_offset": offset, "max_positions": theirs["max_position_embeddings"] - offset}


def _write_offset(config: TransformerConfig) -> dict[str, Any]:
    return {"max_position_embeddings": config.max_positions + config.position_offset}


def _roberta(name: str, cls: str) -> ModelFamily:
    return replace(
        BERT,
        name=name,
        # published files have a pooler, too
        classes={f"{cls}ForMaskedLM": ("language", "pooler"), f"{cls}Model": ("pooler",)},
        prefix="roberta.",
        head_names=ROBERTA_HEAD,
        task_heads=roberta_heads(cls, "classifier.dense", "classifier.out_proj", activation="tanh"),
        fixed={**FIXED, "head_activation": "gelu"},
        fields=FIELDS | ENDS,
        defaults={**DEFAULTS, **token_ids(pad=1, bos=0, eos=2)},
        copies={"lm_head.decoder.bias": "lm_head.bias"},
        read=_read_offset,
        write=_write_offset,
    )


ROBERTA = _roberta("roberta", "Roberta")
XLM_ROBERTA = _roberta("xlm-roberta", "XLMRoberta")


def _read_width(theirs: dict[str, Any]) -> dict[str, Any]:
    """Embeddings are projected only if their size differs from the hidden size."""
    size = theirs["embedding_size"]
    return {"embedding_size": 0 if size == theirs["hidden_size"] else size}


ELECTRA = replace(
    BERT,
    name="electra",
    classes={
        "ElectraForMaskedLM": ("language",),
        "ElectraForPreTraining": ("replaced",),
        "ElectraModel": (),
    },
    prefix="electra.",
    names={**NAMES, "encoder.embedding.project": "embeddings_project"},
    head_names={
        **masked_head(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head.bias",
            "generator_lm_head.weight",
        ),
        "heads.replaced.dense": "discriminator_predictions.dense",
        "heads.replaced.output": "discriminator_predictions.dense_prediction",
    },
    task_heads={
        **roberta_heads("Electra", "classifier.dense", "classifier.out_proj", activation="gelu"),
        "choose": TaskHead(
            cls="ElectraForMultipleChoice",
            names={"layers.0": "sequence_summary.summary", "output": "classifier"},
            shape={"label_layers": 1, "label_activation": "gelu"},
        ),
    },
    fixed={**FIXED, "head_activation": "gelu"},
    defaults={**DEFAULTS, "embedding_size": 128},
    copies={},
    read=_read_width,
    write=lambda config: {"embedding_size": config.token_embedding_size},
)
