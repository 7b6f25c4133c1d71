"""Terminal rendering of results."""
