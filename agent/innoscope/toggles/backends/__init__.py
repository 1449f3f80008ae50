"""Change a setting through SQL, or in the server's memory with types from gdb."""
