"""Make an apt repository of the .debs, signed with the builder's key.

apt does not verify signatures inside a .deb. It verifies ``InRelease``, which has the checksum of
``Packages``, which has the checksum of each .deb (apt-secure(8)).
"""

from __future__ import annotations

import gzip
import shutil
from typing import TYPE_CHECKING

from distribution.metadata import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FOLDER = "apt"
KEY = "innoscope.asc"


def repository(debs: Sequence[Path], key: str, out: Path) -> Path:
    """Add the packages to the repository in ``out``, and sign it. Return the path of ``InRelease``.

    It is a flat repository: ``deb [signed-by=…] URL ./``. ``key`` is a gpg key (id or name), whose public key
    is exported to ``innoscope.asc``.
    """
    missing = [program for program in ("gpg", "apt-ftparchive") if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"cannot make the apt repository: no {missing[0]}; apt-get install gnupg apt-utils")
    folder = out / FOLDER
    folder.mkdir(exist_ok=True)
    for deb in debs:
        shutil.copy(deb, folder)
    packages = run(["apt-ftparchive", "packages", "."], cwd=folder)
    (folder / "Packages").write_text(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages.encode(), mtime=0))
    named = [f"--option=APT::FTPArchive::Release::{name}=innoscope" for name in ("Origin", "Label", "Suite")]
    signed = folder / "InRelease"
    for old in (signed, folder / "Release"):
        old.unlink(missing_ok=True)
    (folder / "Release").write_text(run(["apt-ftparchive", *named, "release", "."], cwd=folder))
    gpg = ["gpg", "--batch", "--yes", "--local-user", key]
    run([*gpg, "--clearsign", "--output", str(signed), str(folder / "Release")])
    (folder / KEY).write_text(run(["gpg", "--batch", "--armor", "--export", key]))
    return signed
