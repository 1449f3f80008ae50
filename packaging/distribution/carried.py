"""Bundled Python libraries, in exact versions: distributions do not have them, or only older versions."""

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
    """Download the wheels of carried.txt. pip verifies their checksums."""
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    run([*PIP, "download", *options, "--dest", str(folder), "--requirement", str(LIST)])
    return sorted(folder.glob("*.whl"))


def install(site: Path, programs: Path) -> None:
    """Unpack all wheels: packages into ``site``, the program of py-spy into ``programs``."""
    with tempfile.TemporaryDirectory(prefix="innoscope-carried-") as folder:
        for wheel in download(Path(folder)):
            unpack(wheel, site)
    for scripts in site.glob("*.data/scripts"):
        for program in scripts.iterdir():
            shutil.move(program, programs / program.name)
            (programs / program.name).chmod(0o755)
        shutil.rmtree(scripts.parent)


def unpack(wheel: Path, site: Path) -> None:
    """Extract a wheel (a zip file). The caller sets modes and moves scripts."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
