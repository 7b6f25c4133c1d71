"""Ways of fine-tuning, as functions on a network."""
