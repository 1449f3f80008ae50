"""Profile a server for some seconds: CPU time, or the time that threads wait, by stack."""
