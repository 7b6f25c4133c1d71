"""Training on several processes with torch.distributed: replicated or sharded weights."""
