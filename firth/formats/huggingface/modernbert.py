"""ModernBERT and its decoder variant: rotary positions, gated, no biases (Warner et al. 2024)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firth.formats.huggingface.family import ModelFamily, config_fields, masked_head, token_ids
from firth.formats.huggingface.label_heads import TaskHead, bert_heads
from firth.formats.huggingface.rope import (
    FULL,
    SLIDING,
    layer_types,
    read_two_ropes,
    sliding_layers,
    write_two_ropes,
)
from firth.models.transformer_config import TransformerConfig

FIELDS = config_fields(
    "vocab_size hidden_size num_layers=num_hidden_layers num_heads=num_attention_heads "
    "ffn_size=intermediate_size max_positions=max_position_embeddings "
    "activation=hidden_activation norm_eps norm_bias bias=mlp_bias transform_bias=classifier_bias "
    "head_activation=classifier_activation dropout=mlp_dropout attention_dropout "
    "init_std=initializer_range pad_token_id bos_token_id eos_token_id "
    "tie_embeddings=tie_word_embeddings"
)

FIXED = {
    "position_embedding": "rotary",
    "norm_position": "pre",
    "first_norm": False,
    "gated": True,
    "head_transform": True,
    "head_bias": "trained",
    "initialization": "scaled-truncated",
}

DEFAULTS = {
    "tie_word_embeddings": True,
    "norm_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "classifier_activation": "gelu",
    "classifier_pooling": "cls",
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "mlp_dropout": 0.0,
    "attention_dropout": 0.0,
    **token_ids(pad=None, bos=None, eos=None),
}


def _read(theirs: dict[str, Any], inclusive: int) -> dict[str, Any]:
    every = theirs["global_attn_every_n_layers"]
    usual = [SLIDING if i % every else FULL for i in range(theirs["num_hidden_layers"])]
    windowed = sliding_layers(theirs, usual)
    full, local = ("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0)
    return {
        **read_two_ropes(theirs, full, local, bool(windowed)),
        "window": theirs["local_attention"] // 2 - 1 + inclusive if windowed else 0,
        "windowed_layers": windowed,
    }


def _write(config: TransformerConfig, inclusive: int) -> dict[str, Any]:
    return {
        "attention_bias": config.bias,
        "embedding_dropout": config.dropout,
        "local_attention": 2 * (config.window + 1 - inclusive) if config.windowed_layers else 128,
        "layer_types": layer_types(config),
        "rope_parameters": write_two_ropes(config),
        "cls_token_id": config.bos_token_id,
        "sep_token_id": config.eos_token_id,
    }


def _write_decoder(config: TransformerConfig) -> dict[str, Any]:
    """Their decoder requires ids for these special tokens; missing ones become 0."""
    written = _write(config, inclusive=0)
    roles = token_ids(pad=config.pad_token_id, bos=config.bos_token_id, eos=config.eos_token_id)
    roles |= {name: id for name, id in written.items() if name.endswith("token_id")}
    return {**written, **{name: 0 for name, id in roles.items() if id is None}}


POOLING = {"cls": "first", "mean": "mean"}


def _read_encoder(theirs: dict[str, Any]) -> dict[str, Any]:
    return {**_read(theirs, inclusive=1), "pooling": POOLING[theirs["classifier_pooling"]]}


def _write_encoder(config: TransformerConfig) -> dict[str, Any]:
    pooling = "mean" if config.pooling == "mean" else "cls"
    return {**_write(config, inclusive=1), "classifier_pooling": pooling}


def _names(side: str, qkv: str) -> dict[str, str]:
    names = {
        "embedding.norm": "embeddings.norm",
        "blocks.*.attention_norm.before": "layers.*.attn_norm",
        "blocks.*.attention.qkv": f"layers.*.attn.{qkv}",
        "blocks.*.attention.output": "layers.*.attn.Wo",
        "blocks.*.feed_forward_norm.before": "layers.*.mlp_norm",
        "blocks.*.feed_forward.up": "layers.*.mlp.Wi",
        "blocks.*.feed_forward.down": "layers.*.mlp.Wo",
        "final_norm": "final_norm",
    }
    ours = {f"{side}.{name}": theirs for name, theirs in names.items()}
    return {"tokens": "embeddings.tok_embeddings", **ours}


def _task_heads(cls: str, heads: tuple[str, ...], **shape: Any) -> dict[str, TaskHead]:
    """Every head has a dense layer and a norm, like the language model head."""
    names = {"layers.0": "head.dense", "norm": "head.norm", "output": "classifier"}
    shape = {"label_layers": 1, "label_activation": "gelu", "label_norm": True, **shape}
    return {
        head: replace(row, names=names, pooler=False, shape=shape)
        for head, row in bert_heads(cls).items()
        if head in heads
    }


# The encoder's window includes both ends, the decoder's does not.
MODERNBERT = ModelFamily(
    name="modernbert",
    classes={"ModernBertForMaskedLM": ("language",), "ModernBertModel": ()},
    prefix="model.",
    names=_names("encoder", "Wqkv"),
    head_names=masked_head("head.dense", "head.norm", "decoder.bias", "decoder.weight"),
    task_heads=_task_heads("ModernBert", ("classify", "choose", "tag", "span")),
    fixed={**FIXED, "architecture": "encoder"},
    fields=FIELDS,
    defaults=DEFAULTS,
    required={"decoder_bias": True},
    read=_read_encoder,
    write=_write_encoder,
)

MODERNBERT_DECODER = replace(
    MODERNBERT,
    name="modernbert-decoder",
    classes={"ModernBertDecoderForCausalLM": ("language",), "ModernBertDecoderModel": ()},
    names=_names("decoder", "{q_proj,k_proj,v_proj}"),
    head_names=masked_head("lm_head.dense", "lm_head.norm", "decoder.bias", "decoder.weight"),
    task_heads=_task_heads("ModernBertDecoder", ("classify",), pooling="last", label_bias=False),
    fixed={**FIXED, "architecture": "decoder"},
    read=lambda theirs: _read(theirs, inclusive=0),
    write=_write_decoder,
    takes_prefix=True,
)
