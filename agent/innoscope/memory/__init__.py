"""Read numbers from a live server's memory: by symbol and DWARF offset, or through its variable tables."""
