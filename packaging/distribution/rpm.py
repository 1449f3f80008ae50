"""Build the .rpm with rpmbuild, from a spec file that lists the files of the staged tree."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from distribution.metadata import PACKAGING, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distribution.metadata import Metadata

#: Directories that the package owns. All other directories belong to the distribution.
_OWN = ("etc/innoscope", "usr/lib/innoscope", "usr/share/innoscope", "usr/share/doc/innoscope")


def build_fedora(metadata: Metadata, tree: Path, work: Path, out: Path) -> Path:
    """Build the package for Fedora from the staged ``tree``, and return its path. ``work`` must not exist."""
    return _build(metadata, "rpm", metadata.release, tree, work, out)


def build_el(metadata: Metadata, tree: Path, work: Path, out: Path) -> Path:
    """Build the package for RHEL 8 and 9 from the portable ``tree``, and return its path."""
    return _build(metadata, "el", f"{metadata.release}.el8", tree, work, out)


def _build(metadata: Metadata, system: str, release: str, tree: Path, work: Path, out: Path) -> Path:
    work.mkdir()
    file_name = metadata.rpm_name(release)
    fields = {
        "name": metadata.name,
        "version": metadata.version,
        "release": release,
        "summary": metadata.summary,
        "licence": metadata.licence,
        "maintainer": metadata.maintainer,
        "description": metadata.description,
        "requires": "\n".join(_requires(metadata, system)),
        "tree": str(tree),
        "files": "\n".join(_files(tree)),
    }
    text = (PACKAGING / "rpm" / "innoscope.spec.in").read_text()
    for name, value in fields.items():
        text = text.replace(f"@{name}@", value)
    spec = work / f"{metadata.name}.spec"
    spec.write_text(text)
    macros = {
        "_topdir": str(work),
        "_rpmdir": str(out),
        "_build_name_fmt": file_name,
        "use_source_date_epoch_as_buildtime": "1",
        "clamp_mtime_to_source_date_epoch": "1",
        "_binary_payload": "w7.zstdio",
    }
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(metadata.time)}
    run(["rpmbuild", "-bb", "--quiet", f"--target={metadata.machine}", *defines, str(spec)], env=environment)
    return out / file_name


def _requires(metadata: Metadata, system: str) -> Iterator[str]:
    yield from (f"Requires: {one}" for one in metadata.depends[system])
    yield from (f"Recommends: {one}" for one in metadata.recommends[system])


def _files(tree: Path) -> Iterator[str]:
    yield "%defattr(-,root,root,-)"
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree)
        if path.is_dir() and not path.is_symlink():
            if name.as_posix().startswith(_OWN):
                yield f"%dir /{name}"
        elif name.parts[0] == "etc":
            yield f"%config(noreplace) /{name}"
        elif name.as_posix().startswith("usr/share/man/"):
            yield f"/{name}*"  # rpmbuild may compress manual pages
        else:
            yield f'"/{name}"'
