"""Collect samples, match them to the declared metrics, and export them."""
