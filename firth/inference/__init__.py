"""Using a trained model: generation, scoring, prompting, infilling and embedding."""
