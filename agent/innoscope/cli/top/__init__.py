"""The live view of all threads of a server, once per second by default, and its replay from a recording."""
