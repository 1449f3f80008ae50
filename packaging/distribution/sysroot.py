"""Download the libraries for cross builds of the core."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from distribution.metadata import DEB_NAMES, ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = ROOT / "build" / "sysroot"
#: Debian's packages with the libraries. The core is linked with libelf and zlib; dpkg-shlibdeps needs all of
#: the libraries.
_PACKAGES = ("libc6", "libelf1", "libgcc-s1", "zlib1g")


def libraries(machine: str) -> Path:
    """Return a directory with Debian's libraries for this architecture; download them if necessary."""
    folder = _FOLDER / machine
    if not folder.exists():
        scratch = _FOLDER / f"{machine}.new"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        _download(DEB_NAMES[machine], scratch)
        scratch.rename(folder)
    return folder


def _download(architecture: str, folder: Path) -> None:
    """Download the packages with apt, which verifies signatures. Do not change the host's package lists."""
    apt = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Dir::Cache": apt,
        "Dir::State::Lists": apt / "lists",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    run(["apt-get", "-qq", *options, "update"])
    run(["apt-get", "-qq", *options, "download", *_PACKAGES], cwd=apt)
    for deb in apt.glob("*.deb"):
        run(["dpkg-deb", "--extract", str(deb), str(apt / "root")])
    for found in (apt / "root").rglob("lib*.so.[0-9]*"):
        if found.is_file():
            shutil.copyfile(found, folder / found.name)
    for name in ("libelf.so", "libz.so"):
        (folder / name).symlink_to(f"{name}.1")
    shutil.rmtree(apt)
