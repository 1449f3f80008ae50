"""The live view of all threads of a server, updated once per second, and its replay from a recording."""
