"""Collectors: one module per source of samples. The runner calls each with a timeout."""
