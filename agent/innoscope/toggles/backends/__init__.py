"""The ways a setting is changed: SQL, or the server's memory with types from gdb."""
