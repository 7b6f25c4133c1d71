"""MobileBERT: bottleneck blocks with a smaller hidden size inside (Sun et al. 2020)."""

from __future__ import annotations

from firth.formats.huggingface.bert import FIELDS, FIXED, NAMES
from firth.formats.huggingface.family import ModelFamily
from firth.formats.huggingface.label_heads import bert_heads

LAYERS = {
    "down": "bottleneck.input.dense",
    "down_norm": "bottleneck.input.LayerNorm",
    "look": "bottleneck.attention.dense",
    "look_norm": "bottleneck.attention.LayerNorm",
    "attention.qkv": "attention.self.{query,key}",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm.outer": "attention.output.LayerNorm",
    "feed_forwards.*.up": "ffn.*.intermediate.dense",
    "feed_forwards.*.down": "ffn.*.output.dense",
    "feed_forward_norms.*.outer": "ffn.*.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm.outer": "output.LayerNorm",
    "up": "output.bottleneck.dense",
    "up_norm.outer": "output.bottleneck.LayerNorm",
}


def _mobilebert(pooler: tuple[str, ...]) -> ModelFamily:
    """Define a family; without pooler, heads take the first token's hidden state."""
    return ModelFamily(
        name="mobilebert",
        classes={
            "MobileBertForPreTraining": ("language", *pooler, "pair"),
            "MobileBertForMaskedLM": ("language",),
            "MobileBertForNextSentencePrediction": (*pooler, "pair"),
            "MobileBertModel": pooler,
        },
        prefix="mobilebert.",
        names={
            **{name: theirs for name, theirs in NAMES.items() if "blocks" not in name},
            **{f"encoder.blocks.*.{ours}": f"encoder.layer.*.{n}" for ours, n in LAYERS.items()},
            "encoder.embedding.project": "embeddings.embedding_transformation",
        },
        head_names={
            "heads.language.transform": "cls.predictions.transform.dense",
            "heads.language.norm": "cls.predictions.transform.LayerNorm",
            "heads.language.bias": "cls.predictions.bias",
            "heads.language.weight": "cls.predictions.decoder.weight",
            "heads.language.extension": "cls.predictions.dense.weight",
            "heads.pair.dense": "cls.seq_relationship",
        },
        task_heads=bert_heads("MobileBert", pooler=bool(pooler)),
        fixed={**FIXED, "norm": "affine", "trigrams": True, "tie_embeddings": True},
        fields={name: theirs for name, theirs in FIELDS.items() if name != "tie_embeddings"}
        | {
            "embedding_size": "embedding_size",
            "bottleneck_size": "intra_bottleneck_size",
            "num_feed_forwards": "num_feedforward_networks",
        },
        defaults={
            "hidden_act": "relu",
            "layer_norm_eps": 1e-12,
            "pad_token_id": 0,
            "classifier_activation": True,
        },
        required={
            "trigram_input": True,
            "use_bottleneck": True,
            "use_bottleneck_attention": False,
            "key_query_shared_bottleneck": True,
            "normalization_type": "no_norm",
            "tie_word_embeddings": True,
            "classifier_activation": bool(pooler),
        },
        ignored=r"position_ids$",
        copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    )


MOBILEBERT, MOBILEBERT_POOLED = _mobilebert(()), _mobilebert(("pooler",))
