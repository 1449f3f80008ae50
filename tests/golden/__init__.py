"""Recorded stacks with their expected wait classes."""
