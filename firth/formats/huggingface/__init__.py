"""Hugging Face checkpoints: one file per model family."""
