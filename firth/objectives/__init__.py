"""Pre-training objectives: pure functions that hide something and say what must be predicted."""
