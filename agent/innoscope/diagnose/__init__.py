"""Find the cause of a stall: collect evidence for some seconds, and rank findings by rules."""
