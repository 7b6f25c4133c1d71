"""Text data: file readers, cleaning, deduplication, token shards, and sampling."""
