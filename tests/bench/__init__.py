"""Benchmarks of Innoscope on real servers, compared with the tools it replaces: ``python -m bench``."""
