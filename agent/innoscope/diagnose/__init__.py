"""Find the cause of a stall: collect evidence for a few seconds, and rank findings by rules."""
