"""The live view: one picture a second of where all threads of a server are, and the same over a recording."""
