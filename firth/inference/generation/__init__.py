"""Text generation: sampling, beam search and logits processors."""
