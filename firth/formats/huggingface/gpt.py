"""GPT (post-norm) and GPT-2 (pre-norm) decoders (Radford et al. 2018, 2019).

"gelu" in GPT's files is the function that GPT-2's files call "gelu_new".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firth.formats.huggingface.family import ModelFamily, config_fields, token_ids
from firth.formats.huggingface.label_heads import bert_heads, decoder_heads
from firth.models.transformer_config import TransformerConfig

BLOCKS = {
    "decoder.blocks.*.attention.qkv": "h.*.attn.c_attn",
    "decoder.blocks.*.attention.output": "h.*.attn.c_proj",
    "decoder.blocks.*.feed_forward.up": "h.*.mlp.c_fc",
    "decoder.blocks.*.feed_forward.down": "h.*.mlp.c_proj",
}

FIELDS = config_fields(
    "vocab_size hidden_size=n_embd num_layers=n_layer num_heads=n_head max_positions=n_positions "
    "norm_eps=layer_norm_epsilon dropout=resid_pdrop attention_dropout=attn_pdrop "
    "init_std=initializer_range pad_token_id bos_token_id eos_token_id "
    "tie_embeddings=tie_word_embeddings"
)
DEFAULTS = {"tie_word_embeddings": True, **token_ids(pad=None, bos=None, eos=None)}
MASKS = r"\.attn\.(masked_)?bias$"  # stored in older files


def _read_gpt1(theirs: dict[str, Any]) -> dict[str, Any]:
    afn = "gelu_new" if theirs["afn"] == "gelu" else theirs["afn"]
    return {"ffn_size": 4 * theirs["n_embd"], "activation": afn}


def _write_gpt1(config: TransformerConfig) -> dict[str, Any]:
    afn = "gelu" if config.activation == "gelu-tanh" else config.activation
    return {"afn": afn, "embd_pdrop": config.dropout}


GPT1 = ModelFamily(
    name="openai-gpt",
    classes={"OpenAIGPTLMHeadModel": ("language",), "OpenAIGPTModel": ()},
    prefix="transformer.",
    names={
        "tokens": "tokens_embed",
        "decoder.embedding.positions": "positions_embed",
        "decoder.blocks.*.attention_norm.outer": "h.*.ln_1",
        "decoder.blocks.*.feed_forward_norm.outer": "h.*.ln_2",
        **BLOCKS,
    },
    head_names={"heads.language.weight": "lm_head.weight"},
    task_heads=decoder_heads("OpenAIGPT"),
    fixed={
        "architecture": "decoder",
        "position_embedding": "learned",
        "embedding_norm": False,
        "norm_position": "post",
        "initialization": "normal",
    },
    fields=FIELDS,
    defaults={**DEFAULTS, "afn": "gelu"},
    transposed=("attention.qkv", "attention.output", "feed_forward.up", "feed_forward.down"),
    ignored=rf"{MASKS}|position_ids$",
    read=_read_gpt1,
    write=_write_gpt1,
)


GPT2 = replace(
    GPT1,
    name="gpt2",
    classes={"GPT2LMHeadModel": ("language",), "GPT2Model": ()},
    names={
        "tokens": "wte",
        "decoder.embedding.positions": "wpe",
        "decoder.blocks.*.attention_norm.before": "h.*.ln_1",
        "decoder.blocks.*.feed_forward_norm.before": "h.*.ln_2",
        **BLOCKS,
        "decoder.final_norm": "ln_f",
    },
    task_heads={
        **decoder_heads("GPT2"),
        "tag": bert_heads("GPT2")["tag"],
        "span": bert_heads("GPT2")["span"],
    },
    fixed={**GPT1.fixed, "norm_position": "pre", "initialization": "scaled"},
    fields=FIELDS | {"ffn_size": "n_inner", "activation": "activation_function"},
    defaults={
        **DEFAULTS,
        "n_inner": None,
        "activation_function": "gelu_new",
        **token_ids(bos=50256, eos=50256),
    },
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    ignored=MASKS,
    read=lambda theirs: {"ffn_size": theirs["n_inner"] or 4 * theirs["n_embd"]},
    write=lambda config: {"embd_pdrop": config.dropout},
    takes_prefix=True,
)
