"""Build the .tar.gz, which runs from any folder with any supported Python, and needs no installation."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from distribution import sbom
from distribution.metadata import PACKAGING, ROOT, run
from distribution.stage import HOME, SITE

if TYPE_CHECKING:
    from pathlib import Path

    from distribution.metadata import Metadata


def build(metadata: Metadata, tree: Path, work: Path, out: Path) -> Path:
    """Build the archive from the portable ``tree``, and return its path. ``work`` must not exist."""
    home = work / metadata.tar_name
    shutil.copytree(tree / SITE, home / "lib")
    shutil.copytree(tree / "etc" / metadata.name, home / "etc")
    shutil.copytree(tree / "usr/share", home / "share")
    shutil.rmtree(home / "share" / metadata.name / "systemd")  # the archive contains no units
    (home / "bin").mkdir()
    shutil.copy(tree / HOME / "bin" / "py-spy", home / "bin")
    shutil.copy(ROOT / "LICENSE", home)
    shutil.copy(PACKAGING / "portable.sh", home / metadata.name)
    (home / metadata.name).chmod(0o755)
    sbom.write(home / "share" / metadata.name / "sbom.cdx.json", metadata, home / "lib", ["python3"])
    made = out / f"{metadata.tar_name}.tar.gz"
    same = ["--sort=name", f"--mtime=@{metadata.time}", "--owner=0", "--group=0", "--numeric-owner"]
    gzip = "--use-compress-program=gzip -9n"
    run(["tar", "--create", f"--file={made}", *same, gzip, f"--directory={work}", metadata.tar_name])
    return made
