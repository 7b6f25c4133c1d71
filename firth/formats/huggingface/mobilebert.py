"""MobileBERT: bottleneck blocks with a smaller hidden size inside (Sun et al. 2020)."""

from __future__ import annotations

from dataclasses import replace

from firth.formats.huggingface.bert import BERT, DEFAULTS, FIELDS, FIXED, NAMES
from firth.formats.huggingface.family import ModelFamily, config_fields
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
    return replace(
        BERT,
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
            **BERT.head_names,
            "heads.language.extension": "cls.predictions.dense.weight",
        },
        task_heads=bert_heads("MobileBert", pooler=bool(pooler)),
        fixed={**FIXED, "norm": "affine", "trigrams": True, "tie_embeddings": True},
        fields={name: theirs for name, theirs in FIELDS.items() if name != "tie_embeddings"}
        | config_fields(
            "embedding_size bottleneck_size=intra_bottleneck_size "
            "num_feed_forwards=num_feedforward_networks"
        ),
        defaults={**DEFAULTS, "hidden_act": "relu", "classifier_activation": True},
        required={
            "trigram_input": True,
            "use_bottleneck": True,
            "use_bottleneck_attention": False,
            "key_query_shared_bottleneck": True,
            "normalization_type": "no_norm",
            "tie_word_embeddings": True,
            "classifier_activation": bool(pooler),
        },
        takes_prefix=False,
    )


MOBILEBERT, MOBILEBERT_POOLED = _mobilebert(()), _mobilebert(("pooler",))
