"""A decoder's step in C, for a CPU: small networks are bound by what Python asks of torch."""
