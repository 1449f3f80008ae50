"""From a stall to its cause: evidence is gathered for some seconds, and findings are ranked by rules."""
