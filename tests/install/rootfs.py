"""Provide a minimal Debian in the cache, with systemd and the package's dependencies.

Only the dependencies that the package declares are installed, so a test fails if a declaration is missing.
Because the dependencies are installed in advance, installing the package needs no network.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from typing import TYPE_CHECKING

from servers import cache, ensure_packages
from servers.debian import date_options, mirror
from servers.run import run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Increase this when the recipe changes, so that directories made with an older one are not used.
_RECIPE = 2
#: The release on which the services are tested.
SUITE = "bookworm"
#: Additional packages: systemd for the units, and a library that the test server needs.
_BESIDE = ("systemd", "libaio1")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")


def depends(deb: Path) -> list[str]:
    """Return the package names in Pre-Depends and Depends; of alternatives, return only the first."""
    fields = subprocess.run(
        ["dpkg-deb", "--field", deb, "Pre-Depends", "Depends"], capture_output=True, text=True, check=True
    ).stdout
    entries = [entry for line in fields.splitlines() for entry in line.partition(": ")[2].split(",")]
    return sorted({match[0] for entry in entries if (match := _NAME.match(entry.strip()))})


def clean_root(needed: Iterable[str], suite: str = SUITE) -> Path:
    """Return a root directory with the ``needed`` packages. Tests share it: write only to an overlay."""
    names = sorted({*needed, *(_BESIDE if suite == SUITE else ())})
    key = hashlib.sha256(f"{_RECIPE} {suite} {names}".encode()).hexdigest()[:8]
    root = cache.root() / "roots" / f"{suite}-{key}"
    if not root.exists():
        ensure_packages(["mmdebstrap"])
        with cache.locked(root.name):
            if not root.exists():
                _make(root, suite, names)
    return root / "root"


def _make(root: Path, suite: str, names: list[str]) -> None:
    options = ['APT::Install-Recommends "false"', *date_options()]
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(names)}"]
    with cache.made_whole(root) as scratch:
        home = scratch / "root"
        run([*command, *(f"--aptopt={option}" for option in options), suite, str(home), mirror()], scratch)
        home.chmod(0o755)
        for timer in ("apt-daily", "apt-daily-upgrade"):  # these would run apt and hold its lock
            mask = home / "etc/systemd/system" / f"{timer}.timer"
            mask.parent.mkdir(parents=True, exist_ok=True)  # a root for another release lacks systemd
            mask.symlink_to("/dev/null")
