"""Collect the licenses of the bundled libraries and of the crates compiled into the core."""

from __future__ import annotations

import csv
import json
import platform
import shutil
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from distribution import carried, toolchain
from distribution.metadata import PACKAGING, ROOT, run

#: Components of libraries whose wheels have no SBOM: bcrypt's, from its Cargo.lock, and PyYAML's.
LINKED = PACKAGING / "linked.json"

#: C libraries that are linked into the core, by the crate that bundles their sources: the repository on
#: GitHub, the folder in the crate, and the license. In the crate's version, the library's version follows the
#: plus sign.
VENDORED = {
    "libbpf-sys": ("libbpf/libbpf", "libbpf", "LGPL-2.1-only OR BSD-2-Clause"),
    "zstd-sys": ("facebook/zstd", "zstd", "BSD-3-Clause OR GPL-2.0-only"),
}
#: Bundled sources that are not compiled, because libbpf-sys is built without its features vendored-libelf and
#: vendored-zlib.
NOT_COMPILED = frozenset({("libbpf-sys", "elfutils"), ("libbpf-sys", "zlib")})

_NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "AUTHORS")
_OURS = "innoscope"


@dataclass(frozen=True, slots=True)
class Part:
    """A library or crate with its license expression and license files.

    For a C library, ``crate`` is the crate that bundles it, and ``name`` is its repository on GitHub.
    """

    name: str
    version: str
    licence: str
    files: tuple[Path, ...]
    crate: str | None = None

    @property
    def text(self) -> str:
        """Return a heading, followed by the names and contents of the license files."""
        head = f"{self.name} {self.version}: {self.licence}"
        texts = (f"--- {path.name}\n\n{path.read_text(errors='replace').strip()}" for path in self.files)
        return "\n\n".join([f"{head}\n{'=' * len(head)}", *texts])


def collect(site: Path, doc: Path, machine: str) -> None:
    """Write ``carried-licences.txt`` and ``crates-licences.txt``; remove the libraries' license files."""
    doc.mkdir(parents=True, exist_ok=True)
    _write(doc / "carried-licences.txt", [*libraries(site), *linked(site)])
    _write(doc / "crates-licences.txt", [*crates(machine), runtime()])
    for info in site.glob("*.dist-info"):
        for path in _of_library(info):
            path.unlink()
        shutil.rmtree(info / "licenses", ignore_errors=True)


def libraries(site: Path) -> list[Part]:
    """Return the Python libraries in ``site`` with their licenses, excluding Innoscope."""
    found = []
    for info in sorted(site.glob("*.dist-info")):
        metadata = HeaderParser().parsestr((info / "METADATA").read_text())
        if metadata["Name"] == _OURS:
            continue
        classified = [
            line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier", []) if "License ::" in line
        ]
        licence = (
            metadata["License-Expression"] or ", ".join(classified) or metadata["License"] or "see below"
        )
        found.append(Part(metadata["Name"], metadata["Version"], licence.splitlines()[0], _of_library(info)))
    return found


def components(site: Path) -> list[dict[str, Any]]:
    """Return the CycloneDX components compiled into the wheels in ``site``.

    They are listed in the wheels' SBOMs (PEP 770), or in linked.json for wheels that have none.
    """
    lists = [json.loads(path.read_text()) for path in sorted(site.glob("*.dist-info/sboms/*.json"))]
    found = [component for document in lists for component in document["components"]]
    for library, components in json.loads(LINKED.read_text()).items():
        if (site / f"{library}.dist-info").exists():
            found += components
    return found


def linked(site: Path) -> list[Part]:
    """Return the crates compiled into the libraries in ``site``, whose license texts the wheels lack."""
    return [
        Part(one["name"], one["version"], one["licenses"][0]["expression"], ()) for one in components(site)
    ]


def crates(machine: str = platform.machine()) -> list[Part]:
    """Return the crates linked into the core with their licenses, excluding build and test dependencies.

    The C libraries that crates bundle are at the end of the list.
    """
    manifest = ROOT / "agent" / "native" / "Cargo.toml"
    target = f"{machine}-unknown-linux-gnu"
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--quiet"]
    resolved = json.loads(run([*command, f"--filter-platform={target}", f"--manifest-path={manifest}"]))
    packages = {package["id"]: package for package in resolved["packages"]}
    edges = {node["id"]: node["deps"] for node in resolved["resolve"]["nodes"]}
    root = resolved["resolve"]["root"]
    reached, waiting = set(), [root]
    while waiting:
        one = waiting.pop()
        if one not in reached:
            reached.add(one)
            waiting += [
                dep["pkg"] for dep in edges[one] if any(kind["kind"] is None for kind in dep["dep_kinds"])
            ]
    found = [packages[one] for one in reached - {root}]
    parts = sorted(map(_crate, found), key=lambda part: (part.name, part.version))
    return [*parts, *(_vendored(package) for package in found if package["name"] in VENDORED)]


def runtime() -> Part:
    """Return zig's runtime (libunwind and compiler_rt), which zig links into the core instead of libgcc."""
    home = toolchain.zig()
    version = carried.pinned(toolchain.LIST)["ziglang"][0]
    files = (home / "LICENSE", home / "lib" / "libunwind" / "LICENSE.TXT")
    return Part("ziglang", version, "MIT AND Apache-2.0 WITH LLVM-exception", files)


def _crate(package: dict[str, str]) -> Part:
    files = texts(Path(package["manifest_path"]).parent)
    return Part(package["name"], package["version"], package["license"] or "see below", files)


def _vendored(package: dict[str, str]) -> Part:
    """Return the C library that a crate bundles."""
    crate = package["name"]
    name, folder, licence = VENDORED[crate]
    version = package["version"].rpartition("+")[2].removeprefix("zstd.").removeprefix("v")
    return Part(name, version, licence, texts(Path(package["manifest_path"]).parent / folder), crate)


def texts(folder: Path) -> tuple[Path, ...]:
    """Return the license files in a folder, and those in its subfolder ``LICENSES``."""
    named = (path for path in folder.iterdir() if path.name.upper().startswith(_NAMES))
    entries = (one for path in named for one in (path.iterdir() if path.is_dir() else (path,)))
    return tuple(sorted(path for path in entries if path.is_file()))


def _of_library(info: Path) -> tuple[Path, ...]:
    """Return all license files of a library, including its parts'."""
    rows = csv.reader((info / "RECORD").read_text().splitlines())
    files = (info.parent / row[0] for row in rows if Path(row[0]).name.upper().startswith(_NAMES))
    return tuple(sorted(path for path in files if path.is_file() and path.suffix != ".py"))


def _write(path: Path, parts: list[Part]) -> None:
    path.write_text("\n\n\n".join(part.text for part in parts) + "\n")
