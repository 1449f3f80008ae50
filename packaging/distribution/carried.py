"""Bundle Python libraries that distributions lack or have only in older versions, at pinned versions."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from distribution.metadata import PACKAGING, run

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
LIST = PACKAGING / "carried.txt"
#: The Python versions that the packages support. msgspec has one extension module per version, with the
#: version in its name, so all of them are bundled. Our core uses the stable ABI: one file for 3.11 and later.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def download(folder: Path) -> list[Path]:
    """Download the wheels listed in carried.txt, and return their paths. pip verifies the checksums."""
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    for version in PYTHONS:
        target = ["--python-version", version, "--dest", str(folder)]
        run([*PIP, "download", *options, *target, "--requirement", str(LIST)])
    return sorted(folder.glob("*.whl"))


def install(site: Path, programs: Path) -> None:
    """Download and unpack all wheels: packages into ``site``, py-spy's program into ``programs``."""
    with tempfile.TemporaryDirectory(prefix="innoscope-carried-") as folder:
        for wheel in download(Path(folder)):
            unpack(wheel, site)
    for scripts in site.glob("*.data/scripts"):
        for program in scripts.iterdir():
            shutil.move(program, programs / program.name)
            (programs / program.name).chmod(0o755)
        shutil.rmtree(scripts.parent)


def unpack(wheel: Path, site: Path) -> None:
    """Extract a wheel (a zip file). The caller must set file modes and move scripts."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
