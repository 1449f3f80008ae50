"""Watch for a stall: evaluate triggers, record evidence before and during it, write an incident file."""
