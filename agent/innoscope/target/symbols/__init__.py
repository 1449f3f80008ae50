"""Find debug files, and read and list the symbol packs installed on this host (docs/symbols.md).

The Rust core reads the names in a pack; ``packs`` reads everything else.
"""
