"""Collect samples, with one module for each source. The runner gives each collector a timeout."""
