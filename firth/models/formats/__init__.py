"""The files that models are kept in."""
