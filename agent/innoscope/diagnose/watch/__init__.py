"""Watch for a stall: evaluate triggers, record evidence before and during it, and write an incident file."""
