"""BART and mBART: encoder-decoders with the norm after the sum (Lewis et al. 2020), or before the
sub-layers and once more at the end (Liu et al. 2020).
"""

from __future__ import annotations

from typing import Any

from firth.models.config import ModelConfig
from firth.models.formats.family import Family, refuse_unless_equal


def _side(ours: str, cross: bool, place: str) -> dict[str, str]:
    """The names of one side; `place`: where the norms are."""
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


FIELDS = {
    "vocabulary": "vocab_size",
    "width": "d_model",
    "layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "heads": "encoder_attention_heads",
    "inner": "encoder_ffn_dim",
    "context": "max_position_embeddings",
    "activation": "activation_function",
    "embedding_scale": "scale_embedding",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "spread": "init_std",
    "padding_id": "pad_token_id",
    "begin_id": "bos_token_id",
    "end_id": "eos_token_id",
    "start_id": "decoder_start_token_id",
}


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    refuse_unless_equal(theirs, "encoder_attention_heads", "decoder_attention_heads")
    refuse_unless_equal(theirs, "encoder_ffn_dim", "decoder_ffn_dim")
    return {}


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        "decoder_attention_heads": config.heads,
        "decoder_ffn_dim": config.inner,
        "is_encoder_decoder": True,
    }


def _bart(name: str, classes: str, norm_place: str, module: str) -> Family:
    """`norm_place`: where norms stand; `module`: which of a residual's three they are."""
    return Family(
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
            "positions": "learned",
            "position_offset": 2,
            "norm_place": norm_place,
            "norm_eps": 1e-5,
            "head_bias": "fixed",
            "tied": True,
            "initialisation": "normal",
        },
        fields=FIELDS,
        defaults={
            "scale_embedding": False,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 2 if norm_place == "post" else None,
        },
        required={"tie_word_embeddings": True},  # or each side has a table of its own
        rows=("heads.language.bias",),
        ignored=r"(encoder|decoder)\.embed_tokens|\.version$",
        read=_read,
        write=_write,
        takes_prefix=True,
    )


BART = _bart("bart", "Bart", "post", "outer")
MBART = _bart("mbart", "MBart", "pre", "before")
