"""Downstream tasks: data format, head, metric and default recipe."""
