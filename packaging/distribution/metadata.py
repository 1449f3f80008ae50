"""Read the packages' metadata from pyproject.toml, package.toml and the last commit's time."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
#: Debian's architecture names, keyed by ``uname -m``.
DEB_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Metadata:
    """Package metadata. ``version`` excludes the release. Dependencies are keyed by package format."""

    name: str
    version: str
    release: str
    summary: str
    description: str
    licence: str
    section: str
    maintainer: str
    depends: dict[str, list[str]]
    recommends: dict[str, list[str]]
    time: int  # Unix time of the last change to the sources
    machine: str = platform.machine()

    @classmethod
    def read(cls, version: str | None = None, machine: str = platform.machine()) -> Metadata:
        """Read the metadata from the files. ``version`` overrides the version in pyproject.toml."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        package = tomllib.loads((PACKAGING / "package.toml").read_text())
        return cls(
            name=project["name"],
            version=version or project["version"],
            release=package["release"],
            summary=project["description"],
            description=package["description"].strip(),
            licence=project["license"],
            section=package["section"],
            maintainer=_maintainer(os.environ.get("MAINTAINER") or package["maintainer"]),
            depends=package["depends"],
            recommends=package["recommends"],
            time=_time(),
            machine=machine,
        )

    @property
    def deb_architecture(self) -> str:
        """Return Debian's name for the architecture: ``amd64`` or ``arm64``."""
        return DEB_NAMES[self.machine]

    @property
    def deb_name(self) -> str:
        """Return the file name of the .deb."""
        return f"{self.name}_{self.version}-{self.release}_{self.deb_architecture}.deb"

    def rpm_name(self, release: str) -> str:
        """Return the file name of an .rpm."""
        return f"{self.name}-{self.version}-{release}.{self.machine}.rpm"

    @property
    def tar_name(self) -> str:
        """Return the name of the directory that the .tar.gz contains."""
        return f"{self.name}-{self.version}-{self.machine}"


def _maintainer(text: str) -> str:
    """Return the maintainer. Exit if it is not a name and an address on one line (Debian Policy 5.6.2)."""
    if not re.fullmatch(r"[^<>%\n]*[^<>%\s] <[^<>%@\s]+@[^<>%@\s]+>", text):
        raise SystemExit(f"MAINTAINER={text!r} is not of the form: NAME <ADDRESS>")
    return text


def _time() -> int:
    """Return ``$SOURCE_DATE_EPOCH``, or else the time of the last commit or of pyproject.toml."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return int(run(command))
    except (OSError, ValueError, subprocess.CalledProcessError):  # not a git checkout
        return int((ROOT / "pyproject.toml").stat().st_mtime)


def run(command: list[str], **options: Any) -> str:
    """Run a command and return its standard output. Raise CalledProcessError if it fails."""
    text: str = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout
    return text
