"""Recurrent networks on packed sequences, and language models made of them."""
