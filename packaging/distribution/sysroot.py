"""Download the libraries that the core for another architecture is linked with."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from distribution.metadata import DEB_NAMES, ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = ROOT / "build" / "sysroot"
#: Debian's packages, and the library in each. The names of the libraries are the same in all suites.
_LIBRARIES = {"libelf1": "libelf.so.1", "zlib1g": "libz.so.1"}


def libraries(machine: str) -> Path:
    """Return a folder with Debian's libelf and zlib for this architecture; download them if necessary."""
    folder = _FOLDER / machine
    if not folder.exists():
        scratch = _FOLDER / f"{machine}.new"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        _download(DEB_NAMES[machine], scratch)
        scratch.rename(folder)
    return folder


def _download(architecture: str, folder: Path) -> None:
    """Download the packages with apt, which verifies its signature, using separate package lists."""
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
    run(["apt-get", "-qq", *options, "download", *_LIBRARIES], cwd=apt)
    for deb in apt.glob("*.deb"):
        run(["dpkg-deb", "--extract", str(deb), str(apt / "root")])
    for name in _LIBRARIES.values():
        (found,) = (path for path in (apt / "root").rglob(name) if "debug" not in path.parts)
        shutil.copyfile(found, folder / name)
        (folder / f"{name.partition('.so')[0]}.so").symlink_to(name)
    shutil.rmtree(apt)
