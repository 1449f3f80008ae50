"""Change a setting over SQL or in the server's memory, and read the types of variables with gdb."""
