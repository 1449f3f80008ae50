"""Copy a server, and change the version that it reports or the names of its functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servers.errors import ServerError
from servers.fetch import Installation, fetch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def renamed(name: str, changes: Mapping[str, str], folder: Path) -> Installation:
    """Copy a server to ``folder``, and replace strings in its binary with others of equal length.

    All other files are symbolic links to the originals.
    """
    real = fetch(name)
    image = real.mysqld.read_bytes()
    for before, after in changes.items():
        if len(before) != len(after) or before.encode() not in image:
            raise ServerError(f"cannot replace {before} with {after} in {real.mysqld}")
        image = image.replace(before.encode(), after.encode())
    copy = Installation(real.spec, folder)
    _link_all(real.home, copy.home, except_for=real.spec.mysqld)
    copy.mysqld.write_bytes(image)
    copy.mysqld.chmod(0o755)
    copy.template.symlink_to(real.template)
    return copy


def _link_all(real: Path, copy: Path, except_for: str) -> None:
    """Link a directory's contents into the copy, except ``except_for``, and create its parent directories."""
    first, _, rest = except_for.partition("/")
    copy.mkdir(parents=True)
    for entry in real.iterdir():
        if entry.name != first:
            (copy / entry.name).symlink_to(entry)
        elif rest:
            _link_all(entry, copy / first, rest)
