"""Log-likelihoods and pseudo-log-likelihoods of texts."""
