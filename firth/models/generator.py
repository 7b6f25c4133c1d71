"""The generator of ELECTRA: a smaller masked language model that proposes replacement tokens."""

from __future__ import annotations

from dataclasses import replace

from firth.models.transformer_config import TransformerConfig


def generator_config(config: TransformerConfig) -> TransformerConfig:
    """Return a config with a quarter of the hidden size (Clark et al. 2020, table 6)."""
    heads = max(1, config.num_heads // 4)
    return replace(
        config,
        hidden_size=heads * config.head_dim,
        num_heads=heads,
        num_kv_heads=heads,
        ffn_size=max(1, config.ffn_size // 4),
        embedding_size=config.token_embedding_size,
        trigrams=False,
        bottleneck_size=0,
        num_feed_forwards=1,
        head_transform=True,
        tie_embeddings=True,
        head_bias="trained",
    )
