"""Innoscope: see inside a live MySQL or MariaDB server without stopping it."""

__version__ = "0.1.0"
