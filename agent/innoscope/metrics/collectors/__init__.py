"""Collect samples, with one module per source. The runner applies a timeout to each collector."""
