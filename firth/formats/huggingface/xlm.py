"""XLM: a post-norm encoder with separate module lists for norms (Lample and Conneau 2019)."""

from __future__ import annotations

from typing import Any

from firth.formats.huggingface.family import ModelFamily, config_fields, token_ids
from firth.formats.huggingface.label_heads import TaskHead, bert_heads
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import InputError

# Older files have `n_words` for the vocabulary size, and `…_index` for special token ids.
OLD = {
    "vocab_size": "n_words",
    "pad_token_id": "pad_index",
    "bos_token_id": "bos_index",
    "eos_token_id": "eos_index",
}


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    if theirs["use_lang_emb"] and theirs["n_langs"] > 1:
        raise InputError(
            f"An xlm model with embeddings of its {theirs['n_langs']} languages is not supported, "
            "only n_langs = 1 or use_lang_emb = False."
        )
    return {
        "ffn_size": 4 * theirs["emb_dim"],
        "activation": "gelu" if theirs["gelu_activation"] else "relu",
        **{name: theirs[old] for name, old in OLD.items() if old in theirs},
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {"gelu_activation": config.activation == "gelu", "n_langs": 1}


XLM = ModelFamily(
    name="xlm",
    classes={"XLMWithLMHeadModel": ("language",), "XLMModel": ()},
    prefix="transformer.",
    names={
        "tokens": "embeddings",
        "encoder.embedding.positions": "position_embeddings",
        "encoder.embedding.norm": "layer_norm_emb",
        "encoder.blocks.*.attention.qkv": "attentions.*.{q_lin,k_lin,v_lin}",
        "encoder.blocks.*.attention.output": "attentions.*.out_lin",
        "encoder.blocks.*.attention_norm.outer": "layer_norm1.*",
        "encoder.blocks.*.feed_forward.up": "ffns.*.lin1",
        "encoder.blocks.*.feed_forward.down": "ffns.*.lin2",
        "encoder.blocks.*.feed_forward_norm.outer": "layer_norm2.*",
    },
    head_names={
        "heads.language.weight": "pred_layer.proj.weight",
        "heads.language.bias": "pred_layer.proj.bias",
    },
    task_heads={
        "classify": TaskHead(
            cls="XLMForSequenceClassification", names={"output": "sequence_summary.summary"}
        ),
        "tag": bert_heads("XLM")["tag"],
    },
    fixed={
        "architecture": "encoder",
        "position_embedding": "learned",
        "norm_position": "post",
        "head_bias": "trained",
        "initialization": "normal",
    },
    fields=config_fields(
        "vocab_size hidden_size=emb_dim num_layers=n_layers num_heads=n_heads "
        "max_positions=max_position_embeddings norm_eps=layer_norm_eps dropout attention_dropout "
        "init_std pad_token_id bos_token_id eos_token_id tie_embeddings=tie_word_embeddings"
    ),
    defaults={
        "vocab_size": 30145,
        "gelu_activation": True,
        "use_lang_emb": True,
        "n_langs": 1,
        "layer_norm_eps": 1e-12,
        **token_ids(pad=2, bos=0, eos=1),
        "tie_word_embeddings": True,
    },
    required={"asm": False, "causal": False, "is_encoder": True},
    ignored=r"position_ids$",
    read=_read,
    write=_write,
)
