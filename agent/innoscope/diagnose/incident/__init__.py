"""Write, read and compare incident files: the evidence and findings of one server in one portable file."""
