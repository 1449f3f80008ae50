"""Symbol packs: making them of debug files, and what is on this host (docs/symbols.md).

Who uses a pack needs none of this: the core reads the names in it, ``target.packs`` the rest.
"""
