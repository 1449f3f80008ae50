"""Find the package or command that provides the symbols of a stripped file."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innoscope.target import foreign

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT = 3.0  # seconds; a running upgrade may hold the package database's lock
_PACK = "make a symbol pack on a host that has the debug file (innoscope symbols export), and copy it here"
_DEBUGINFOD = "set DEBUGINFOD_URLS to your distribution's or your own debuginfod server"


@dataclass(frozen=True, slots=True)
class Stripped:
    """A file without symbols. ``path`` is its path inside ``root``, the root directory of its process."""

    path: str
    build_id: str | None
    root: Path
    ours: bool  # the process shares our root directory, so our package manager knows the file


def remedy(file: Stripped) -> str:
    """Return alternative steps that provide the symbols, separated by ``; or``, the most promising first."""
    family = distribution(file.root)
    package = owner(file.path, family) if file.ours else None
    remedies = []
    if family == "debian" and package:
        remedies.append(f"apt install {debian_debug_package(package)}")
    elif family == "redhat":
        remedies.append(f"dnf debuginfo-install {package or file.path}")
    elif family == "suse" and package:
        remedies.append(f"zypper install {package}-debuginfo")
    remedies.append(_DEBUGINFOD)
    if file.build_id:
        remedies += [f"put its debug file at {build_id_path(file.build_id)}", _PACK]
    return "; or ".join(remedies)


def build_id_path(build_id: str) -> str:
    """Return the path at which debuggers search for the debug file of a build-id."""
    return f"/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"


def debian_debug_package(package: str) -> str:
    """Return the name of a package's debug package. ``libc6`` follows an older naming scheme."""
    return "libc6-dbg" if package == "libc6" else f"{package}-dbgsym"


def distribution(root: Path) -> str | None:
    """Return ``debian``, ``redhat`` or ``suse`` from etc/os-release; None for other distributions."""
    try:
        text = foreign.read_text(root / "etc/os-release")
    except OSError:
        return None
    pairs = (line.partition("=") for line in text.splitlines())
    values = {name: value.strip("\"'") for name, _, value in pairs}
    words = {values.get("ID", ""), *values.get("ID_LIKE", "").split()}
    for family, names in (
        ("debian", {"debian", "ubuntu"}),
        ("redhat", {"rhel", "fedora", "centos"}),
        ("suse", {"suse", "sles"}),
    ):
        if words & names:
            return family
    return None


def owner(path: str, family: str | None) -> str | None:
    """Return the name of the package that owns a file, without the architecture; None if unknown."""
    if family == "debian":
        for candidate in _usrmerge(path):
            answer = _ask(["dpkg-query", "-S", candidate])
            if answer:
                return answer.splitlines()[-1].split(":")[0].split(",")[0]
        return None
    if family in ("redhat", "suse"):
        return _ask(["rpm", "-qf", "--qf", "%{NAME}", path])
    return None


def _usrmerge(path: str) -> list[str]:
    """Return the paths under which dpkg may list a file: /usr/lib/… as in /proc, or /lib/…"""
    return [path, path.removeprefix("/usr")] if path.startswith("/usr/") else [path]


def _ask(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
