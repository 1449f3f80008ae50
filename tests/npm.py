"""Download npm packages into the tests' cache and verify them against pinned integrity strings."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from servers import cache
from servers.errors import ServerError
from servers.packages import ensure_commands
from servers.run import run

if TYPE_CHECKING:
    from pathlib import Path


def package(name: str, version: str, integrity: str) -> Path:
    """Return the package's directory.

    ``integrity`` is the registry's ``sha512-…`` checksum of the tarball.
    """
    plain = name.replace("/", "-")  # a scoped name contains a slash
    home = cache.root() / "npm" / f"{plain}-{version}"
    if not home.exists():
        with cache.locked(f"npm-{plain}"):
            if not home.exists():
                ensure_commands("npm")
                with cache.made_whole(home) as scratch:
                    _unpack(f"{name}@{version}", integrity, scratch)
    return home / "package"


def _unpack(what: str, integrity: str, scratch: Path) -> None:
    run(["npm", "pack", "--silent", "--ignore-scripts", what], scratch)
    (tarball,) = scratch.glob("*.tgz")
    found = "sha512-" + base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if found != integrity:
        raise ServerError(f"{what}: refused, its integrity is {found} and not the pinned {integrity}")
    run(["tar", "-xzf", str(tarball), "-C", str(scratch), "--no-same-owner"], scratch)
    tarball.unlink()
