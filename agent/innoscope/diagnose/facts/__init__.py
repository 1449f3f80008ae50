"""Compute the values that rules use as ``fact.NAME``: one module per subject, combined in registry.py."""
