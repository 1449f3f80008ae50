"""Trace one function of a server on demand: its rate, latency, callers and arguments."""
