"""The privileged process: probes, looks, memory reads; it listens on a Unix socket only."""
