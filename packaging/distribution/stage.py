"""Stage the tree that the packages install.

There are two variants: one uses the Python libraries of distributions whose ``python3`` is new enough, and
the portable one bundles all libraries.

/usr/lib/innoscope has the layout of a virtual environment. Its ``bin/python`` is a symbolic link to the
distribution's Python. When Python is started through this link, it finds our libraries before those of the
distribution. The packages therefore do not depend on where the distribution's site-packages are, and
processes started with ``sys.executable`` can import innoscope.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distribution import carried, completion, licences, manual, sbom
from distribution.metadata import ROOT, Metadata, run

if TYPE_CHECKING:
    from pathlib import Path

HOME = "usr/lib/innoscope"
SITE = f"{HOME}/lib/python3/site-packages"
CORE = "innoscope/_native.abi3.so"
DOC = "usr/share/doc/innoscope"
SBOM = "usr/share/innoscope/sbom.cdx.json"
_LAUNCHER = """#!/usr/lib/innoscope/bin/python -I
from innoscope.cli.main import run

run()
"""
_FILES = {
    "packaging/agent.toml": "etc/innoscope/agent.toml",
    "packaging/servers.toml": "etc/innoscope/servers.toml",
    "packaging/systemd/innoscope-agent.service": "usr/lib/systemd/system/innoscope-agent.service",
    "packaging/systemd/innoscope-sensor.service": "usr/lib/systemd/system/innoscope-sensor.service",
    "packaging/systemd/innoscope.sysusers": "usr/lib/sysusers.d/innoscope.conf",
    "packaging/systemd/innoscope.tmpfiles": "usr/lib/tmpfiles.d/innoscope.conf",
    "packaging/systemd/sys-admin.conf": "usr/share/innoscope/systemd/sys-admin.conf",
    "packaging/account.sql": "usr/share/innoscope/account.sql",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """The contents of a tree: the lists of libraries that it bundles, and the name of its Python.

    ``depends`` is the key of its dependencies in package.toml.
    """

    bundled: tuple[Path, ...]
    python: str
    depends: str


SYSTEM = Variant((carried.LIST,), "python3", "deb")
PORTABLE = Variant((carried.LIST, carried.PORTABLE), "python3.11", "el")


@dataclass(frozen=True, slots=True)
class Parts:
    """The wheel of Innoscope, the core for the older glibc, and the wheels of the bundled libraries."""

    wheel: Path
    core: Path
    libraries: dict[str, list[Path]]


def stage(metadata: Metadata, variant: Variant, parts: Parts, tree: Path) -> None:
    """Create the directory ``tree`` with all files of the packages."""
    site = tree / SITE
    site.mkdir(parents=True)
    _layout(tree / HOME, variant.python)
    carried.unpack(parts.wheel, site)
    shutil.copyfile(parts.core, site / CORE)
    for requirements in variant.bundled:
        carried.install(parts.libraries, requirements, site, tree / HOME / "bin")
    for source, target in _FILES.items():
        _copy(ROOT / source, tree / target)
    _launcher(tree / "usr/bin/innoscope")
    sbom.write(tree / SBOM, metadata, site, metadata.depends[variant.depends])
    licences.collect(site, tree / DOC, metadata.machine)
    manual.write(tree / "usr/share/man", metadata)
    completion.write(tree / "usr/share")
    _strip(tree, metadata.machine)
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def wheel(folder: Path) -> Path:
    """Remove files of older builds, then build Innoscope's wheel. Return its path in ``folder``.

    The wheel contains the core that `make setup` built for this host.
    """
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    for left in (ROOT / "build").glob("*.linux-*"):
        shutil.rmtree(left)
    run([*carried.PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    (built,) = folder.glob("innoscope-*.whl")
    return built


def _layout(home: Path, python: str) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(f"../../../bin/{python}")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    for version in carried.PYTHONS:  # Python looks for site-packages in a directory named after its version
        (home / "lib" / f"python{version}").symlink_to("python3")


def _launcher(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_LAUNCHER)
    path.chmod(0o755)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _strip(tree: Path, machine: str) -> None:
    """Remove symbols that are only needed to debug Innoscope."""
    for path in (*sorted((tree / SITE).rglob("*.so")), tree / HOME / "bin" / "py-spy"):
        run([f"{machine}-linux-gnu-strip", "--strip-unneeded", "--remove-section=.comment", str(path)])
