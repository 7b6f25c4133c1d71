"""Tokenizers: trained from word counts, and used to encode text."""
