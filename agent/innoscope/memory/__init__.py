"""Numbers out of a live server's memory: by symbol and DWARF offset, or by its own variable tables."""
