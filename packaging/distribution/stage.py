"""Stage the tree that both packages install.

/usr/lib/innoscope has the layout of a virtual environment. Its ``bin/python`` is a link to the distribution's
Python; started through this link, Python finds our libraries before those of the distribution. So the
packages do not depend on the location of the distribution's site-packages, and programs that are started
with ``sys.executable`` can import innoscope.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from distribution import carried, completion, licences, manual, sbom
from distribution.metadata import ROOT, Metadata, run

if TYPE_CHECKING:
    from pathlib import Path

HOME = "usr/lib/innoscope"
SITE = f"{HOME}/lib/python3/site-packages"
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


def stage(metadata: Metadata, wheel: Path, tree: Path) -> None:
    """Create the folder ``tree`` with all files of the packages."""
    site = tree / SITE
    site.mkdir(parents=True)
    _layout(tree / HOME)
    carried.unpack(wheel, site)
    carried.install(site, tree / HOME / "bin")
    for source, target in _FILES.items():
        _copy(ROOT / source, tree / target)
    _launcher(tree / "usr/bin/innoscope")
    sbom.write(tree / SBOM, metadata, site)
    licences.collect(site, tree / DOC)
    manual.write(tree / "usr/share/man", metadata)
    completion.write(tree / "usr/share")
    _strip(tree)
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def wheel(folder: Path) -> Path:
    """Build Innoscope's wheel in ``folder`` after removing files of older builds. Return the wheel's path."""
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    for left in (ROOT / "build").glob("*.linux-*"):
        shutil.rmtree(left)
    run([*carried.PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
    (built,) = folder.glob("innoscope-*.whl")
    return built


def _layout(home: Path) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to("../../../bin/python3")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    for version in carried.PYTHONS:  # Python searches for site-packages below its version
        (home / "lib" / f"python{version}").symlink_to("python3")


def _launcher(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_LAUNCHER)
    path.chmod(0o755)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _strip(tree: Path) -> None:
    """Remove the symbols that are needed only to debug Innoscope."""
    for path in (*sorted((tree / SITE).rglob("*.so")), tree / HOME / "bin" / "py-spy"):
        run(["strip", "--strip-unneeded", "--remove-section=.comment", str(path)])
