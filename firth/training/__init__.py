"""How a model learns: the loop, and what it keeps on the disk."""
