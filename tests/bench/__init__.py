"""What innoscope costs, measured on real servers beside the tools it replaces: ``python -m bench``."""
