"""Networks for one task, trained from random weights: what pre-training replaced."""
