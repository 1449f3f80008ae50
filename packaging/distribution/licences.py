"""The licences of what we carry: of each library, and of each crate that is compiled into the core."""

from __future__ import annotations

import csv
import json
import platform
import shutil
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from distribution.metadata import ROOT, run

_NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "AUTHORS")
#: Where a distribution keeps the texts that everybody has; ours is one of them.
_OURS = "innoscope"


@dataclass(frozen=True, slots=True)
class Part:
    """A library or crate, its licence in words, and the files that say so."""

    name: str
    version: str
    licence: str
    files: tuple[Path, ...]

    @property
    def text(self) -> str:
        """A line of its own and then the files, each after its name."""
        head = f"{self.name} {self.version}: {self.licence}"
        texts = (f"--- {path.name}\n\n{path.read_text(errors='replace').strip()}" for path in self.files)
        return "\n\n".join([f"{head}\n{'=' * len(head)}", *texts])


def collect(site: Path, doc: Path) -> None:
    """Write ``carried-licences.txt`` and ``crates-licences.txt``, and remove what the former has."""
    doc.mkdir(parents=True, exist_ok=True)
    _write(doc / "carried-licences.txt", [*libraries(site), *linked(site)])
    _write(doc / "crates-licences.txt", crates())
    for info in site.glob("*.dist-info"):
        for path in _of_library(info):
            path.unlink()
        shutil.rmtree(info / "licenses", ignore_errors=True)


def libraries(site: Path) -> list[Part]:
    """Those of the Python libraries in ``site`` that are not ours."""
    found = []
    for info in sorted(site.glob("*.dist-info")):
        said = HeaderParser().parsestr((info / "METADATA").read_text())
        if said["Name"] == _OURS:
            continue
        classified = [
            line.rpartition(" :: ")[2] for line in said.get_all("Classifier", []) if "License ::" in line
        ]
        licence = said["License-Expression"] or ", ".join(classified) or said["License"] or "see below"
        found.append(Part(said["Name"], said["Version"], licence.splitlines()[0], _of_library(info)))
    return found


def components(site: Path) -> list[dict[str, Any]]:
    """Return the CycloneDX components that the wheels in ``site`` list as compiled into them (PEP 770)."""
    lists = sorted(site.glob("*.dist-info/sboms/*.json"))
    return [component for path in lists for component in json.loads(path.read_text())["components"]]


def linked(site: Path) -> list[Part]:
    """Return the crates compiled into the libraries in ``site``, whose licence texts the wheels lack."""
    return [
        Part(one["name"], one["version"], one["licenses"][0]["expression"], ()) for one in components(site)
    ]


def crates() -> list[Part]:
    """Those of the crates that end up in the core; not what builds or tests it."""
    manifest = ROOT / "agent" / "native" / "Cargo.toml"
    target = f"{platform.machine()}-unknown-linux-gnu"
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--quiet"]
    told = json.loads(run([*command, f"--filter-platform={target}", f"--manifest-path={manifest}"]))
    packages = {package["id"]: package for package in told["packages"]}
    edges = {node["id"]: node["deps"] for node in told["resolve"]["nodes"]}
    root = told["resolve"]["root"]
    reached, waiting = set(), [root]
    while waiting:
        one = waiting.pop()
        if one not in reached:
            reached.add(one)
            waiting += [
                dep["pkg"] for dep in edges[one] if any(kind["kind"] is None for kind in dep["dep_kinds"])
            ]
    found = (packages[one] for one in reached - {root})
    return sorted((_crate(package) for package in found), key=lambda part: (part.name, part.version))


def _crate(package: dict[str, str]) -> Part:
    entries = Path(package["manifest_path"]).parent.iterdir()
    files = tuple(sorted(path for path in entries if path.is_file() and path.name.upper().startswith(_NAMES)))
    return Part(package["name"], package["version"], package["license"] or "see below", files)


def _of_library(info: Path) -> tuple[Path, ...]:
    """Wherever in the library they lie: some parts of one have their own."""
    rows = csv.reader((info / "RECORD").read_text().splitlines())
    files = (info.parent / row[0] for row in rows if Path(row[0]).name.upper().startswith(_NAMES))
    return tuple(sorted(path for path in files if path.is_file() and path.suffix != ".py"))


def _write(path: Path, parts: list[Part]) -> None:
    path.write_text("\n\n\n".join(part.text for part in parts) + "\n")
