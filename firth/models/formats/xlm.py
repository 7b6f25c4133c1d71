"""XLM: an encoder whose norms stand in lists of their own (Lample and Conneau 2019)."""

from __future__ import annotations

from typing import Any

from firth.errors import InputError
from firth.models.config import ModelConfig
from firth.models.formats.family import Family
from firth.models.formats.labels import TaskHead, plain

# Older files say `n_words` for the vocabulary, and `…_index` for tokens with a role.
OLD = {
    "vocabulary": "n_words",
    "padding_id": "pad_index",
    "begin_id": "bos_index",
    "end_id": "eos_index",
}


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    if theirs["use_lang_emb"] and theirs["n_langs"] > 1:
        raise InputError(
            f"An xlm model with embeddings of its {theirs['n_langs']} languages cannot be read "
            "here, only one with n_langs = 1 or use_lang_emb = False."
        )
    return {
        "inner": 4 * theirs["emb_dim"],
        "activation": "gelu" if theirs["gelu_activation"] else "relu",
        **{name: theirs[old] for name, old in OLD.items() if old in theirs},
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    return {"gelu_activation": config.activation == "gelu", "n_langs": 1}


XLM = Family(
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
        "tag": plain("XLM")["tag"],
    },
    fixed={
        "architecture": "encoder",
        "positions": "learned",
        "norm_place": "post",
        "head_bias": "trained",
        "initialisation": "normal",
    },
    fields={
        "vocabulary": "vocab_size",
        "width": "emb_dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "context": "max_position_embeddings",
        "norm_eps": "layer_norm_eps",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "spread": "init_std",
        "padding_id": "pad_token_id",
        "begin_id": "bos_token_id",
        "end_id": "eos_token_id",
        "tied": "tie_word_embeddings",
    },
    defaults={
        "vocab_size": 30145,
        "gelu_activation": True,
        "use_lang_emb": True,
        "n_langs": 1,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 2,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    },
    required={"asm": False, "causal": False, "is_encoder": True},
    ignored=r"position_ids$",
    read=_read,
    write=_write,
)
