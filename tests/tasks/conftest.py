"""Tiny models that understand text, as those who use a model have them."""

from tests.inference.conftest import make_model, tokenizers, verb

__all__ = ["make_model", "tokenizers", "verb"]
