"""Pre-training objectives: pure functions from token sequences to batches with targets."""
