"""The training loop, losses, optimizers, schedules and checkpoints."""
