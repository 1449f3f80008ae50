"""Build the .tar.gz, which runs from any directory with any supported Python, and needs no installation.

Its directory ``systemd`` contains the units, for hosts on which no package can be installed.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from distribution import sbom
from distribution.metadata import PACKAGING, ROOT, run
from distribution.stage import HOME, SITE

if TYPE_CHECKING:
    from pathlib import Path

    from distribution.metadata import Metadata

#: The command that the packages' units start, and its replacement in the archive's units: a link to the
#: archive's command.
_COMMAND = "/usr/bin/innoscope"
_LINK = "/usr/local/bin/innoscope"


def build(metadata: Metadata, tree: Path, work: Path, out: Path) -> Path:
    """Build the archive from the portable ``tree``, and return its path. ``work`` must not exist."""
    home = work / metadata.tar_name
    shutil.copytree(tree / SITE, home / "lib")
    shutil.copytree(tree / "etc" / metadata.name, home / "etc")
    shutil.copytree(tree / "usr/share", home / "share")
    shutil.move(home / "share" / metadata.name / "systemd", home)
    for folder in ("systemd/system", "sysusers.d", "tmpfiles.d"):
        shutil.copytree(tree / "usr/lib" / folder, home / "systemd" / folder.removeprefix("systemd/"))
    for unit in (home / "systemd/system").iterdir():
        unit.write_text(unit.read_text().replace(f"ExecStart={_COMMAND}", f"ExecStart={_LINK}"))
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
