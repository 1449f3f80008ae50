"""Coverage-guided fuzzing of all code that parses untrusted input: `python -m fuzz --help`."""
