"""Trace one function of a server on demand: call rate, latency, callers and argument values."""
