"""Change a live server: plan, check, journal, write, verify, undo. The daemons never import this package."""
