"""What happens inside a model: attention, layers, representations, attribution."""
