"""DeBERTa, versions 2 and 3: content and distance apart (He et al. 2021 and 2023)."""

from __future__ import annotations

from typing import Any

from firth.errors import InputError
from firth.models.config import ModelConfig
from firth.models.formats.bert import FIELDS, FIXED, NAMES
from firth.models.formats.family import Family, refuse_unless_equal
from firth.models.formats.labels import layered

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
            f"A deberta-v2 model with pos_att_type = {theirs['pos_att_type']!r} cannot be read "
            "here, only ['p2c', 'c2p']."
        )
    if theirs["position_buckets"] < 1:
        raise InputError("A deberta-v2 model without position_buckets cannot be read here.")
    longest, given = theirs["max_position_embeddings"], theirs["max_relative_positions"]
    # A score has three terms: its divisor is sqrt(3 D) (He et al. 2021, section 3.1).
    head_width = theirs["hidden_size"] // theirs["num_attention_heads"]
    return {
        "positions": "learned" if theirs["position_biased_input"] else "none",
        "distance": given if given > 0 else longest,
        "attention_scale": float((3 * head_width) ** -0.5),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        "position_biased_input": config.positions == "learned",
        "max_relative_positions": config.distance,
        "pos_att_type": ["p2c", "c2p"],
    }


DEBERTA = Family(
    name="deberta-v2",
    classes={"DebertaV2ForMaskedLM": ("language",), "DebertaV2Model": ()},
    prefix="deberta.",
    names={**NAMES, **DISTANCES, "encoder.blocks.*.attention.qkv": ATTENTION},
    head_names={
        "heads.language.transform": "cls.predictions.transform.dense",
        "heads.language.norm": "cls.predictions.transform.LayerNorm",
        "heads.language.bias": "cls.predictions.bias",
        "heads.language.weight": "cls.predictions.decoder.weight",
    },
    task_heads=layered("DebertaV2", "pooler.dense", "classifier", activation="gelu", choose=True),
    fixed={
        **{name: value for name, value in FIXED.items() if name != "positions"},
        "relative": "disentangled",
    },
    fields=FIELDS | {"buckets": "position_buckets"},
    defaults={
        "layer_norm_eps": 1e-7,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
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
    copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    aliases={  # what the authors, and models that are not `legacy`, call the head
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
        "lm_predictions.lm_head.dense.weight": "cls.predictions.transform.dense.weight",
        "lm_predictions.lm_head.dense.bias": "cls.predictions.transform.dense.bias",
        "lm_predictions.lm_head.LayerNorm.weight": "cls.predictions.transform.LayerNorm.weight",
        "lm_predictions.lm_head.LayerNorm.bias": "cls.predictions.transform.LayerNorm.bias",
    },
    read=_read,
    write=_write,
)
