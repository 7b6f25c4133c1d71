"""N-gram language models with modified Kneser-Ney smoothing."""
