"""Suggest how to install a server's symbols: from a debug package, debuginfod or a symbol pack."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.target import foreign

if TYPE_CHECKING:
    from innoscope.target.model import Target

#: Sources that contain all function names of a build. Other symbols would not add any.
COMPLETE: Final = frozenset({"symtab", "debug-file", "symbol-pack"})
_DEBIAN: Final = frozenset({"debian", "ubuntu"})
_RED_HAT: Final = frozenset({"rhel", "fedora", "centos", "rocky", "almalinux", "ol"})
_SUSE: Final = frozenset({"sles", "suse", "opensuse"})


def remedy(target: Target, root: str | None = None) -> str:
    """Return a remedy for missing symbols: the distribution's debug package, debuginfod, or a symbol pack.

    ``root`` is the server's root directory as seen from here.
    """
    debuginfod = "or set DEBUGINFOD_URLS, or copy a symbol pack here (innoscope symbols --help)"
    if os.environ.get("DEBUGINFOD_URLS"):
        debuginfod = f"debuginfod has none for build-id {target.build_id}; or copy a symbol pack here"
    family = _distribution(root if root is not None else target.inside(""))
    path = target.executable
    if target.root != "/":
        path = path.removeprefix(target.root)
    packaged = path.startswith(("/usr/sbin/", "/usr/bin/", "/usr/libexec/"))
    if not packaged or not family:
        return (
            f"put its debug file at /usr/lib/debug/.build-id/{_build_id_file(target.build_id)}, {debuginfod}"
        )
    if family & _DEBIAN:
        return f"apt install {_debian_package(target)}-dbgsym (from the debug archive), {debuginfod}"
    if family & _RED_HAT:
        package = "mariadb-server" if target.flavour == "mariadb" else "mysql-community-server"
        return f"dnf debuginfo-install {package}, {debuginfod}"
    if family & _SUSE:
        return f"zypper install {target.flavour}-debuginfo, {debuginfod}"
    return f"install its debug symbols, {debuginfod}"


def _debian_package(target: Target) -> str:
    if target.flavour == "mariadb":
        return "mariadb-server-core"
    versioned = target.version[:1] == (8,)  # on Ubuntu: mysql-server-core-8.0
    return "mysql-server-core" + (f"-{target.version[0]}.{target.version[1]}" if versioned else "")


def _build_id_file(build_id: str | None) -> str:
    return f"{build_id[:2]}/{build_id[2:]}.debug" if build_id else "XX/YYYY.debug"


def _distribution(root: str) -> frozenset[str]:
    """Return ID and ID_LIKE from os-release, for example ``{"ubuntu", "debian"}``; empty if unknown."""
    try:
        text = foreign.read_text(Path(root, "etc/os-release"))
    except OSError:
        return frozenset()
    pairs = (line.partition("=") for line in text.splitlines())
    values = [value.strip().strip('"') for key, _, value in pairs if key in ("ID", "ID_LIKE")]
    return frozenset(word for value in values for word in value.split())
