"""Backends that change a setting: SQL, or the server's memory with types from gdb."""
