"""Install pinned Python programs, such as mkdocs, in a virtual environment of their own."""

from __future__ import annotations

import fcntl
import hashlib
import sys
from typing import TYPE_CHECKING

from distribution.metadata import run

if TYPE_CHECKING:
    from pathlib import Path


def install(requirements: Path, folder: Path) -> Path:
    """Return a virtual environment in ``folder`` with the wheels of a list like carried.txt.

    The environment's name contains a checksum of the Python version and the list. Only the first call needs
    the network.
    """
    key = hashlib.sha256(f"{sys.version} {requirements.read_text()}".encode()).hexdigest()[:12]
    home = folder / f"environment-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "environments.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            run([sys.executable, "-m", "venv", "--clear", str(home)])
            options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
            pip = [str(home / "bin/pip"), "--disable-pip-version-check", "install"]
            run([*pip, *options, "--requirement", str(requirements)])
            (home / "complete").touch()
    return home
