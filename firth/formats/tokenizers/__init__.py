"""Tokenizers as other libraries store them."""
