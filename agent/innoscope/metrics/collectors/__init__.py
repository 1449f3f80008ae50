"""Collect samples, with one module per source. The runner calls each collector with a timeout."""
