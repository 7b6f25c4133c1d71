"""Int8 weights, and a decoding step in C for CPUs."""
