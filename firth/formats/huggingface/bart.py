"""BART (post-norm, Lewis et al. 2020) and mBART (pre-norm, Liu et al. 2020) encoder-decoders."""

from __future__ import annotations

from typing import Any

from firth.formats.huggingface.family import (
    ModelFamily,
    config_fields,
    refuse_unless_equal,
    token_ids,
)
from firth.models.transformer_config import TransformerConfig


def _side(ours: str, cross: bool, place: str) -> dict[str, str]:
    """Return the names of the encoder or decoder; `place`: the position of norms."""
    names = {
        "embedding.positions": "embed_positions",
        "embedding.norm": "layernorm_embedding",
        "blocks.*.attention.qkv": "layers.*.self_attn.{q_proj,k_proj,v_proj}",
        "blocks.*.attention.output": "layers.*.self_attn.out_proj",
        f"blocks.*.attention_norm.{place}": "layers.*.self_attn_layer_norm",
        "blocks.*.feed_forward.up": "layers.*.fc1",
        "blocks.*.feed_forward.down": "layers.*.fc2",
        f"blocks.*.feed_forward_norm.{place}": "layers.*.final_layer_norm",
        "final_norm": "layer_norm",
    }
    if cross:
        names |= {
            "blocks.*.cross.query": "layers.*.encoder_attn.q_proj",
            "blocks.*.cross.kv": "layers.*.encoder_attn.{k_proj,v_proj}",
            "blocks.*.cross.output": "layers.*.encoder_attn.out_proj",
            f"blocks.*.cross_norm.{place}": "layers.*.encoder_attn_layer_norm",
        }
    return {f"{ours}.{name}": f"{ours}.{theirs}" for name, theirs in names.items()}


FIELDS = config_fields(
    "vocab_size hidden_size=d_model num_layers=encoder_layers num_decoder_layers=decoder_layers "
    "num_heads=encoder_attention_heads ffn_size=encoder_ffn_dim "
    "max_positions=max_position_embeddings activation=activation_function "
    "embedding_scale=scale_embedding dropout attention_dropout init_std "
    "pad_token_id bos_token_id eos_token_id decoder_start_token_id"
)


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    refuse_unless_equal(theirs, "encoder_attention_heads", "decoder_attention_heads")
    refuse_unless_equal(theirs, "encoder_ffn_dim", "decoder_ffn_dim")
    return {}


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {
        "decoder_attention_heads": config.num_heads,
        "decoder_ffn_dim": config.ffn_size,
        "is_encoder_decoder": True,
    }


def _bart(name: str, classes: str, norm_place: str, module: str) -> ModelFamily:
    """Define a family; `module`: the norm of our residual blocks at `norm_place`."""
    return ModelFamily(
        name=name,
        classes={f"{classes}ForConditionalGeneration": ("language",), f"{classes}Model": ()},
        prefix="model.",
        names={
            "tokens": "shared",
            **_side("encoder", False, module),
            **_side("decoder", True, module),
        },
        head_names={
            "heads.language.weight": "lm_head.weight",
            "heads.language.bias": "final_logits_bias",
        },
        fixed={
            "architecture": "encoder-decoder",
            "position_embedding": "learned",
            "position_offset": 2,
            "norm_position": norm_place,
            "norm_eps": 1e-5,
            "head_bias": "fixed",
            "tie_embeddings": True,
            "initialization": "normal",
        },
        fields=FIELDS,
        defaults={
            "scale_embedding": False,
            **token_ids(pad=1, bos=0, eos=2),
            **token_ids(decoder_start=2 if norm_place == "post" else None),
        },
        required={"tie_word_embeddings": True},  # else encoder and decoder embeddings differ
        rows=("heads.language.bias",),
        ignored=r"(encoder|decoder)\.embed_tokens|\.version$",
        read=_read,
        write=_write,
        takes_prefix=True,
    )


BART = _bart("bart", "Bart", "post", "outer")
MBART = _bart("mbart", "MBart", "pre", "before")
