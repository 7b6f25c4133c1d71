"""T5 and mT5: encoder-decoders with relative positions (Raffel et al. 2020, Xue et al. 2021).

T5 v1.1, Flan-T5 and mT5 have gated layers and do not scale the output. Some files, such as those of
sentence encoders, hold only the encoder.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from firth.formats.huggingface.family import ModelFamily, config_fields, their_activation, token_ids
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import InputError


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


def _is_encoder(theirs: dict[str, Any]) -> bool:
    return any(name.endswith("EncoderModel") for name in theirs.get("architectures") or ())


def _layer(theirs: dict[str, Any]) -> dict[str, Any]:
    *gated, activation = theirs["feed_forward_proj"].split("-")
    if gated and activation == "gelu":
        activation = "gelu_new"
    return {"activation": activation, "gated": bool(gated)}


def _read_encoder(theirs: dict[str, Any]) -> dict[str, Any]:
    if not _is_encoder(theirs):
        raise InputError("This T5 model has a decoder.")
    return _layer(theirs)


def _read(theirs: dict[str, Any], scaled: bool) -> dict[str, Any]:
    if _is_encoder(theirs):
        raise InputError("This T5 model has no decoder.")
    tied = theirs["tie_word_embeddings"]
    # In older files, `tie_word_embeddings` determines whether the output is scaled.
    scale = {"head_scale": theirs.get("scale_decoder_outputs", tied)} if scaled else {}
    return {
        **_layer(theirs),
        **scale,
        "num_decoder_layers": theirs.get("num_decoder_layers") or theirs["num_layers"],
        "tie_embeddings": tied,
        "decoder_start_token_id": theirs.get("decoder_start_token_id", theirs["pad_token_id"]),
    }


def _write_layer(config: TransformerConfig) -> dict[str, Any]:
    theirs = their_activation(config.activation)
    if config.gated:
        theirs = "gated-gelu" if config.activation == "gelu-tanh" else f"gated-{theirs}"
    return {"feed_forward_proj": theirs, "is_encoder_decoder": False}


def _write(config: TransformerConfig, scaled: bool) -> dict[str, Any]:
    return {
        **_write_layer(config),
        **({"scale_decoder_outputs": config.head_scale} if scaled else {}),
        "num_decoder_layers": config.num_decoder_layers,
        "tie_word_embeddings": config.tie_embeddings,
        "decoder_start_token_id": config.decoder_start_token_id,
        "is_encoder_decoder": True,
    }


def _t5(name: str, *, gated: bool, scaled: bool, usual: str) -> ModelFamily:
    """Define a family; `scaled`: the output may be scaled; `usual`: default feed_forward_proj."""
    classes = name.upper()
    return ModelFamily(
        name=name,
        classes={f"{classes}ForConditionalGeneration": ("language",), f"{classes}Model": ()},
        prefix="",
        names=GATED if gated else NAMES,
        head_names={"heads.language.weight": "lm_head.weight"},
        fixed={
            "architecture": "encoder-decoder",
            "position_embedding": "none",
            "relative_attention": "bias",
            "embedding_norm": False,
            "norm": "rms",
            "norm_position": "pre",
            "norm_bias": False,
            "bias": False,
            "gated": gated,
            **({} if scaled else {"head_scale": False}),
            "attention_scale": 1.0,
            "initialization": "fan-in",
            "init_std": 1.0,
        },
        fields=config_fields(
            "vocab_size hidden_size=d_model num_layers num_heads head_dim=d_kv ffn_size=d_ff "
            "max_positions=n_positions relative_buckets=relative_attention_num_buckets "
            "relative_max_distance=relative_attention_max_distance norm_eps=layer_norm_epsilon "
            "dropout=dropout_rate attention_dropout=dropout_rate pad_token_id eos_token_id"
        ),
        defaults={
            "feed_forward_proj": usual,
            "n_positions": 512,
            "relative_attention_max_distance": 128,
            "tie_word_embeddings": True,
            **token_ids(pad=0, eos=1),
        },
        ignored=r"^(encoder|decoder)\.embed_tokens|^decoder.*EncDecAttention\.relative",
        read=partial(_read, scaled=scaled),
        write=partial(_write, scaled=scaled),
        takes_prefix=True,
    )


T5, T5_GATED = (_t5("t5", gated=gated, scaled=True, usual="relu") for gated in (False, True))
MT5, MT5_GATED = (
    _t5("mt5", gated=gated, scaled=False, usual="gated-gelu") for gated in (False, True)
)


def _encoder(whole: ModelFamily) -> ModelFamily:
    """Define the encoder-only variant; its tied output embeddings are not stored."""
    names = {ours: theirs for ours, theirs in whole.names.items() if "decoder" not in ours}
    return replace(
        whole,
        classes={f"{whole.name.upper()}EncoderModel": ("language",)},
        names=names,
        fixed={
            **whole.fixed,
            "architecture": "encoder",
            "head_scale": False,
            "tie_embeddings": True,
        },
        read=_read_encoder,
        write=_write_layer,
    )


T5_ENCODERS = tuple(_encoder(whole) for whole in (T5, T5_GATED, MT5, MT5_GATED))
