"""Python libraries that the distributions lack, or have too old: exact versions, in our own folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from distribution.metadata import PACKAGING, run

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
LIST = PACKAGING / "carried.txt"


def download(folder: Path) -> list[Path]:
    """The wheels of carried.txt; pip refuses one whose checksum is not there."""
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    run([*PIP, "download", *options, "--dest", str(folder), "--requirement", str(LIST)])
    return sorted(folder.glob("*.whl"))


def install(site: Path, programs: Path) -> None:
    """Unpack them all: packages into ``site``, the program of py-spy into ``programs``."""
    with tempfile.TemporaryDirectory(prefix="innoscope-carried-") as folder:
        for wheel in download(Path(folder)):
            unpack(wheel, site)
    for scripts in site.glob("*.data/scripts"):
        for program in scripts.iterdir():
            shutil.move(program, programs / program.name)
            (programs / program.name).chmod(0o755)
        shutil.rmtree(scripts.parent)


def unpack(wheel: Path, site: Path) -> None:
    """A wheel is a zip file; modes and scripts are the caller's."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
