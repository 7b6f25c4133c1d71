"""Text embeddings and semantic search."""
