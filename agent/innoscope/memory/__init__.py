"""Read metrics, locks and statements from a live server's memory by symbols, DWARF offsets and tables."""
