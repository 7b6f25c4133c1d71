"""DeBERTa v2 and v3: disentangled attention to content and distance (He et al. 2021, 2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firth.formats.huggingface.bert import BERT, DEFAULTS, FIELDS, FIXED, HEAD, NAMES
from firth.formats.huggingface.family import refuse_unless_equal
from firth.formats.huggingface.label_heads import roberta_heads
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import InputError

ATTENTION = "encoder.layer.*.attention.self.{query_proj,key_proj,value_proj}"
DISTANCES = {
    "encoder.relative.table": "encoder.rel_embeddings",
    "encoder.relative.norm": "encoder.LayerNorm",
}


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    refuse_unless_equal(theirs, "hidden_size", "embedding_size")
    terms = theirs["pos_att_type"] or []
    terms = terms.split("|") if isinstance(terms, str) else terms
    if {term.strip() for term in terms} != {"c2p", "p2c"}:
        raise InputError(
            f"A deberta-v2 model with pos_att_type = {theirs['pos_att_type']!r} is not supported, "
            "only ['p2c', 'c2p']."
        )
    if theirs["position_buckets"] < 1:
        raise InputError("A deberta-v2 model without position_buckets is not supported.")
    longest, given = theirs["max_position_embeddings"], theirs["max_relative_positions"]
    # Attention logits have three terms, so the divisor is sqrt(3 D) (He et al. 2021, section 3.1).
    head_width = theirs["hidden_size"] // theirs["num_attention_heads"]
    return {
        "position_embedding": "learned" if theirs["position_biased_input"] else "none",
        "relative_max_distance": given if given > 0 else longest,
        "attention_scale": float((3 * head_width) ** -0.5),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {
        "position_biased_input": config.position_embedding == "learned",
        "max_relative_positions": config.relative_max_distance,
        "pos_att_type": ["p2c", "c2p"],
    }


DEBERTA = replace(
    BERT,
    name="deberta-v2",
    classes={"DebertaV2ForMaskedLM": ("language",), "DebertaV2Model": ()},
    prefix="deberta.",
    names={**NAMES, **DISTANCES, "encoder.blocks.*.attention.qkv": ATTENTION},
    head_names=HEAD,
    task_heads=roberta_heads(
        "DebertaV2", "pooler.dense", "classifier", activation="gelu", choose=True
    ),
    fixed={
        **{name: value for name, value in FIXED.items() if name != "position_embedding"},
        "relative_attention": "disentangled",
    },
    fields=FIELDS | {"relative_buckets": "position_buckets"},
    defaults={
        **DEFAULTS,
        "layer_norm_eps": 1e-7,
        "type_vocab_size": 0,
        "max_relative_positions": -1,
        "pos_att_type": None,
        "position_biased_input": True,
        "position_buckets": -1,
        "norm_rel_ebd": "none",
        "relative_attention": False,
        "share_att_key": False,
    },
    required={
        "conv_kernel_size": 0,
        "norm_rel_ebd": "layer_norm",
        "relative_attention": True,
        "share_att_key": True,
    },
    ignored=r"position_ids$|^mask_predictions\.",
    aliases={  # names of the head in the authors' files and in models without `legacy`
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
        **{
            f"lm_predictions.lm_head.{name}": f"cls.predictions.transform.{name}"
            for name in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")
        },
    },
    read=_read,
    write=_write,
    takes_prefix=False,
)
