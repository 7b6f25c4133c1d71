"""GPT-2: a decoder with the norm before the sub-layers (Radford et al. 2019)."""

from __future__ import annotations

from typing import Any

from firth.models.formats.family import Family


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    return {"inner": theirs.get("n_inner") or 4 * theirs["n_embd"]}


GPT2 = Family(
    name="gpt2",
    classes={"GPT2LMHeadModel": ("language",), "GPT2Model": ()},
    prefix="transformer.",
    names={
        "tokens": "wte",
        "decoder.embedding.positions": "wpe",
        "decoder.blocks.*.attention_norm.before": "h.*.ln_1",
        "decoder.blocks.*.attention.qkv": "h.*.attn.c_attn",
        "decoder.blocks.*.attention.output": "h.*.attn.c_proj",
        "decoder.blocks.*.feed_forward_norm.before": "h.*.ln_2",
        "decoder.blocks.*.feed_forward.up": "h.*.mlp.c_fc",
        "decoder.blocks.*.feed_forward.down": "h.*.mlp.c_proj",
        "decoder.final_norm": "ln_f",
    },
    head_names={"heads.language.weight": "lm_head.weight"},
    fixed={
        "architecture": "decoder",
        "positions": "learned",
        "embedding_norm": False,
        "norm_place": "pre",
        "initialisation": "scaled",
    },
    fields={
        "vocabulary": "vocab_size",
        "width": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "inner": "n_inner",
        "context": "n_positions",
        "activation": "activation_function",
        "norm_eps": "layer_norm_epsilon",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "spread": "initializer_range",
        "padding_id": "pad_token_id",
        "begin_id": "bos_token_id",
        "end_id": "eos_token_id",
        "tied": "tie_word_embeddings",
    },
    defaults={
        "n_inner": None,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
        "pad_token_id": None,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    transposed=("attention.qkv", "attention.output", "feed_forward.up", "feed_forward.down"),
    ignored=r"\.attn\.(masked_)?bias$",
    read=_read,
    write=lambda config: {"embd_pdrop": config.dropout},
)
