"""Coverage-guided fuzzing of everything that reads input of foreign origin: `python -m fuzz --help`."""
