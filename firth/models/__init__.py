"""The Transformer: one block stack under a mask, its heads, and presets of published models."""
