"""The implementation of each command: prepare, pre-train, fine-tune, evaluate, predict, prompt."""
