"""Bundle pinned versions of Python libraries that distributions lack or provide only in older versions."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import zipfile
from typing import TYPE_CHECKING

from distribution.metadata import PACKAGING, run

if TYPE_CHECKING:
    from pathlib import Path

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
#: Libraries that all packages bundle.
LIST = PACKAGING / "carried.txt"
#: Libraries that only the packages with the portable tree bundle (stage.py).
PORTABLE = PACKAGING / "portable.txt"
#: The Python versions that the packages support. msgspec has one extension module per version, and the file
#: name contains the version, so all of them are bundled. Our core uses the stable ABI: one file for 3.11 and
#: later.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

#: pip's platform tags, without the architecture, of wheels that need glibc 2.28 or older.
_SYSTEMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")

_PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)((?: *\\\n +--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)
_SHA256 = re.compile("sha256:([0-9a-f]+)")


def download(folder: Path, machine: str = platform.machine()) -> dict[str, list[Path]]:
    """Download the wheels of both lists. Return their paths by library. pip verifies the checksums."""
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    if machine != platform.machine():
        options += [f"--platform={system}_{machine}" for system in _SYSTEMS]
    for version in PYTHONS:
        target = ["--python-version", version, "--dest", str(folder)]
        run([*PIP, "download", *options, *target, "--requirement", str(LIST), "--requirement", str(PORTABLE)])
    wheels: dict[str, list[Path]] = {}
    for wheel in sorted(folder.glob("*.whl")):
        wheels.setdefault(wheel.name.partition("-")[0].lower().replace("_", "-"), []).append(wheel)
    return wheels


def pinned(requirements: Path) -> dict[str, tuple[str, list[str]]]:
    """Return the versions and SHA-256 checksums in a file like carried.txt, by library."""
    lines = _PINNED.findall(requirements.read_text())
    return {name: (version, _SHA256.findall(hashes)) for name, version, hashes in lines}


def install(wheels: dict[str, list[Path]], requirements: Path, site: Path, programs: Path) -> None:
    """Unpack the wheels of a list: packages into ``site``, the py-spy program into ``programs``."""
    for name in pinned(requirements):
        for wheel in wheels[name]:
            unpack(wheel, site)
    for scripts in site.glob("*.data/scripts"):
        for program in scripts.iterdir():
            shutil.move(program, programs / program.name)
            (programs / program.name).chmod(0o755)
        shutil.rmtree(scripts.parent)


def unpack(wheel: Path, site: Path) -> None:
    """Extract a wheel (a zip file). The caller must set the file modes and move the scripts."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
