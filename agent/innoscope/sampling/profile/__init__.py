"""Profile a server for a few seconds: CPU time, or the time that threads spend waiting, by stack."""
