"""The live view: where all threads of a server are, once a second, and the same over a recording."""
