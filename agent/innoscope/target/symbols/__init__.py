"""Symbol packs: make them from debug files, and list those of this host (docs/symbols.md).

Using a pack does not need this package: the core reads the names in it, ``packs`` everything else.
"""
