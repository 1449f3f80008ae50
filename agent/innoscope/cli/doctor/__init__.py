"""What works on this host and server, what does not, and what to do about it."""
