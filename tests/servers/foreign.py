"""Unpack Debian packages of another architecture or suite with apt, without installing or running them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servers.debian import date_options, mirror, prepare_root
from servers.run import run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Packages that every root has besides the essential ones.
_ALWAYS = ("base-files", "mount")
#: The directories that are links to the directories of the same name in /usr.
_MERGED = ("bin", "sbin", "lib")


class Archive:
    """A suite of Debian's archive for one architecture, with its own package lists in ``folder``."""

    def __init__(self, suite: str, architecture: str, folder: Path) -> None:
        self._folder = folder
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True)
        sources, status = folder / "sources.list", folder / "status"
        sources.write_text(f"deb {mirror()} {suite} main\n")
        status.touch()
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Dir::Cache": folder,
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "/nonexistent",
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": status,
        }
        self._options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        self._options += [word for option in date_options() for word in ("-o", _assignment(option))]
        run(["apt-get", "-qq", *self._options, "update"], folder)

    def depends(self, package: str) -> str:
        """Return apt's recursive listing of a package's dependencies."""
        unwanted = ("suggests", "recommends", "conflicts", "breaks", "replaces", "enhances")
        options = ("--recurse", *(f"--no-{kind}" for kind in unwanted))
        return run(["apt-cache", *self._options, "depends", *options, package], self._folder)

    def download(self, packages: Iterable[str]) -> list[Path]:
        """Download packages without their dependencies; apt verifies the archive's signature."""
        debs = self._folder / "debs"
        debs.mkdir()
        run(["apt-get", "-qq", *self._options, "download", *packages], debs)
        return sorted(debs.glob("*.deb"))

    def download_root(self, packages: Iterable[str]) -> list[Path]:
        """Download the given packages and those that every root has, with all dependencies."""
        wanted = ["--yes", "--download-only", "install", "?essential", *_ALWAYS, *packages]
        run(["apt-get", "-qq", *self._options, *wanted], self._folder)
        return sorted((self._folder / "archives").glob("*.deb"))


def unpack_root(debs: Iterable[Path], home: Path) -> None:
    """Unpack packages into a root directory, and register them as installed. They are not configured."""
    for name in _MERGED:
        (home / "usr" / name).mkdir(parents=True)
        (home / name).symlink_to(f"usr/{name}")
    statuses = []
    for deb in debs:
        run(["dpkg-deb", "--extract", str(deb), str(home)], home)
        fields = run(["dpkg-deb", "--field", str(deb)], home).strip()
        statuses.append(f"{fields}\nStatus: install ok installed\n")
    database = home / "var/lib/dpkg"
    (database / "info").mkdir(parents=True, exist_ok=True)
    (database / "status").write_text("\n".join(statuses))
    prepare_root(home)


def _assignment(option: str) -> str:
    """Convert a line of ``apt-config dump`` to the form of apt's option ``-o``."""
    name, _, value = option.partition(" ")
    return f"{name}={value.strip(chr(34))}"
