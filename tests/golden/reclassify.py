"""Classify all recorded stacks again, and store the classes: ``python -m golden.reclassify``.

Check every changed line before you commit it, because the tests rely on these files.
"""

from __future__ import annotations

from dataclasses import replace

from golden import store


def reclassify(server: str) -> int:
    """Update the classes in the server's file; return the number of changed stacks."""
    before = store.read(server)
    after = [replace(item, wait=store.classify(item)) for item in before]
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    if changed:
        store.write(server, after)
    return changed


if __name__ == "__main__":
    for name in store.servers():
        print(f"{name}: {reclassify(name)} stacks have a new class")
