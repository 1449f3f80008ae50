"""The command line: one thin module per command."""

import gc

# Python's 700 new objects mean that a start looks for garbage all the time, among modules and classes that
# all stay. Set before the first of them is imported, hence here.
gc.set_threshold(50_000)
