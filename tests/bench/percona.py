"""Provide pt-pmp 3.7.1 from Debian sid, which has the ``pteu`` dumper; Debian 12's 3.2.1 supports only gdb.

apt downloads the package and verifies its signature. The package is unpacked into the cache, not installed.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from servers import cache
from servers.debian import date_options, mirror

_PACKAGE = "percona-toolkit"
_SUITE = "sid"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def home() -> Path:
    """Return the directory of the unpacked package. Raise SubprocessError if it cannot be downloaded."""
    target = cache.root() / "tools" / f"{_PACKAGE}-{_SUITE}"
    if not target.exists():
        with cache.locked(target.name):
            if not target.exists():
                _unpack(target)
    return target


def _unpack(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="innoscope-apt-") as name, cache.made_whole(target) as scratch:
        folder = Path(name)
        folder.chmod(0o755)
        for inner in ("state/lists/partial", "cache/archives/partial", "debs"):
            (folder / inner).mkdir(parents=True)
        source = folder / "sources.list"
        source.write_text(f"deb [signed-by={_KEYRING}] {mirror()} {_SUITE} main\n")
        options = [
            f"Dir::State={folder}/state",
            f"Dir::Cache={folder}/cache",
            f"Dir::Etc::sourcelist={source}",
            "Dir::Etc::sourceparts=/dev/null",
            "Acquire::Languages=none",
            "APT::Sandbox::User=root",
            *(option.replace(" ", "=").replace('"', "") for option in date_options()),
        ]
        apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
        _run([*apt, "update"], folder)
        _run([*apt, "download", _PACKAGE], folder / "debs")
        for deb in (folder / "debs").glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(deb), str(scratch)], folder)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=600)
