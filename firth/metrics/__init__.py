"""Evaluation metrics, each with a bootstrap confidence interval."""
