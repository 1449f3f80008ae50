"""Explain the latency of statements: how long they take, and what the slow ones wait for."""
