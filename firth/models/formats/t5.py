"""T5 and T5 v1.1: encoder-decoders with relative positions (Raffel et al. 2020)."""

from __future__ import annotations

from typing import Any

from firth.models.config import ModelConfig
from firth.models.formats.family import ACTIVATIONS, Family


def _side(ours: str, cross: bool) -> dict[str, str]:
    last = 2 if cross else 1
    names = {
        "relative": "block.0.layer.0.SelfAttention.relative_attention_bias",
        "blocks.*.attention_norm.before": "block.*.layer.0.layer_norm",
        "blocks.*.attention.qkv": "block.*.layer.0.SelfAttention.{q,k,v}",
        "blocks.*.attention.output": "block.*.layer.0.SelfAttention.o",
        "blocks.*.feed_forward_norm.before": f"block.*.layer.{last}.layer_norm",
        "blocks.*.feed_forward.up": f"block.*.layer.{last}.DenseReluDense.wi",
        "blocks.*.feed_forward.down": f"block.*.layer.{last}.DenseReluDense.wo",
        "final_norm": "final_layer_norm",
    }
    if cross:
        names |= {
            "blocks.*.cross_norm.before": "block.*.layer.1.layer_norm",
            "blocks.*.cross.query": "block.*.layer.1.EncDecAttention.q",
            "blocks.*.cross.kv": "block.*.layer.1.EncDecAttention.{k,v}",
            "blocks.*.cross.output": "block.*.layer.1.EncDecAttention.o",
        }
    return {f"{ours}.{name}": f"{ours}.{theirs}" for name, theirs in names.items()}


NAMES = {"tokens": "shared", **_side("encoder", False), **_side("decoder", True)}
GATED = {
    name: theirs.replace("DenseReluDense.wi", "DenseReluDense.{wi_0,wi_1}")
    for name, theirs in NAMES.items()
}


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    *gated, activation = theirs["feed_forward_proj"].split("-")
    if gated and activation == "gelu":
        activation = "gelu_new"
    tied = theirs["tie_word_embeddings"]
    return {
        "activation": activation,
        "gated": bool(gated),
        "decoder_layers": theirs.get("num_decoder_layers") or theirs["num_layers"],
        "tied": tied and theirs.get("scale_decoder_outputs", True),
        "head_scale": theirs.get("scale_decoder_outputs", tied),
        "start_id": theirs.get("decoder_start_token_id", theirs["pad_token_id"]),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    theirs = next(name for name, ours in ACTIVATIONS.items() if ours == config.activation)
    if config.gated:
        theirs = "gated-gelu" if config.activation == "gelu-tanh" else f"gated-{theirs}"
    return {
        "feed_forward_proj": theirs,
        "num_decoder_layers": config.decoder_layers,
        "tie_word_embeddings": config.tied,
        "decoder_start_token_id": config.start_id,
        "is_encoder_decoder": True,
    }


def _t5(gated: bool) -> Family:
    return Family(
        name="t5",
        classes={"T5ForConditionalGeneration": ("language",), "T5Model": ()},
        prefix="",
        names=GATED if gated else NAMES,
        head_names={"heads.language.weight": "lm_head.weight"},
        fixed={
            "architecture": "encoder-decoder",
            "positions": "none",
            "relative": "bias",
            "embedding_norm": False,
            "norm": "rms",
            "norm_place": "pre",
            "norm_bias": False,
            "bias": False,
            "gated": gated,
            "attention_scale": 1.0,
            "initialisation": "fan-in",
            "spread": 1.0,
        },
        fields={
            "vocabulary": "vocab_size",
            "width": "d_model",
            "layers": "num_layers",
            "heads": "num_heads",
            "head_width": "d_kv",
            "inner": "d_ff",
            "context": "n_positions",
            "buckets": "relative_attention_num_buckets",
            "distance": "relative_attention_max_distance",
            "norm_eps": "layer_norm_epsilon",
            "dropout": "dropout_rate",
            "attention_dropout": "dropout_rate",
            "padding_id": "pad_token_id",
            "end_id": "eos_token_id",
        },
        defaults={
            "feed_forward_proj": "relu",
            "n_positions": 512,
            "relative_attention_max_distance": 128,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "eos_token_id": 1,
        },
        ignored=r"^(encoder|decoder)\.embed_tokens|^decoder.*EncDecAttention\.relative",
        read=_read,
        write=_write,
    )


T5, T5_GATED = _t5(gated=False), _t5(gated=True)
