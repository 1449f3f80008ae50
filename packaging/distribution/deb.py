"""Build the .deb with debhelper, which registers the services and determines the shared libraries needed."""

from __future__ import annotations

import email.utils
import os
import platform
import shutil
from typing import TYPE_CHECKING

from distribution import sysroot
from distribution.metadata import PACKAGING, ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

    from distribution.metadata import Metadata

_DEBIAN = PACKAGING / "debian"
#: The packages that provide the libraries (deb-shlibs(5)), for builds for another architecture. Without this
#: list, dpkg-shlibdeps finds only packages that are installed.
_LIBRARIES = """\
ld-linux-aarch64 1 libc6 (>= 2.28)
libc 6 libc6 (>= 2.28)
libdl 2 libc6 (>= 2.28)
libelf 1 libelf1 (>= 0.144)
libgcc_s 1 libgcc-s1 (>= 3.3)
libm 6 libc6 (>= 2.28)
libpthread 0 libc6 (>= 2.28)
librt 1 libc6 (>= 2.28)
libz 1 zlib1g (>= 1:1.2.3.3)
"""


def build(metadata: Metadata, tree: Path, work: Path, out: Path) -> Path:
    """Build the package from the staged ``tree``, and return its path.

    The directory ``work`` must not exist.
    """
    shutil.copytree(_DEBIAN, work / "debian")
    shutil.copytree(tree, work / "tree", symlinks=True)
    shutil.copyfile(ROOT / "CHANGELOG.md", work / "CHANGELOG.md")
    (work / "debian" / "control").write_text(_control(metadata))
    (work / "debian" / "changelog").write_text(_changelog(metadata))
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(metadata.time)}
    if metadata.machine != platform.machine():
        (work / "debian" / "shlibs.local").write_text(_LIBRARIES)
        environment["FOREIGN_LIBRARIES"] = str(sysroot.libraries(metadata.machine))
    # sets DEB_HOST_ARCH, which debhelper reads
    run(
        ["dpkg-architecture", f"-a{metadata.deb_architecture}", "-c", "debian/rules binary"],
        cwd=work,
        env=environment,
    )
    made = work.parent / metadata.deb_name
    return made.rename(out / made.name)


def _control(metadata: Metadata) -> str:
    depends = ", ".join(["${shlibs:Depends}", "${misc:Depends}", *metadata.depends["deb"]])
    lines = [
        f"Source: {metadata.name}",
        f"Section: {metadata.section}",
        "Priority: optional",
        f"Maintainer: {metadata.maintainer}",
        "Build-Depends: debhelper-compat (= 13)",
        "Standards-Version: 4.6.2",
        "Rules-Requires-Root: no",
        "",
        f"Package: {metadata.name}",
        f"Architecture: {metadata.deb_architecture}",
        "Pre-Depends: ${misc:Pre-Depends}",
        f"Depends: {depends}",
        f"Recommends: {', '.join(metadata.recommends['deb'])}",
        f"Description: {_synopsis(metadata.summary)}",
        *(f" {line}" if line else " ." for line in metadata.description.splitlines()),
    ]
    return "\n".join(lines) + "\n"


def _synopsis(summary: str) -> str:
    """Return the summary without its initial capital letter: a Debian synopsis is not a sentence."""
    return summary[0].lower() + summary[1:]


def _changelog(metadata: Metadata) -> str:
    when = email.utils.formatdate(metadata.time, usegmt=True).replace("GMT", "+0000")
    return (
        f"{metadata.name} ({metadata.version}-{metadata.release}) bookworm; urgency=medium\n\n"
        f"  * What changed: /usr/share/doc/{metadata.name}/changelog.gz\n\n"
        f" -- {metadata.maintainer}  {when}\n"
    )
