"""The demo of `firth demo`."""
