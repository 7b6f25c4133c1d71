"""Task files: what the examples of each task are, and how they are read."""
