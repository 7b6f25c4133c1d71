"""One transformer block, the masks that make it an encoder, a decoder or both, and its formats."""
