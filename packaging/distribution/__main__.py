"""``python -m distribution``: build the packages in dist/."""

from __future__ import annotations

import argparse
import platform
import tempfile
from pathlib import Path

from distribution import apt, carried, deb, rpm, tar, toolchain
from distribution.metadata import DEB_NAMES, ROOT, Metadata
from distribution.sign import sign
from distribution.stage import PORTABLE, SYSTEM, Parts, stage, wheel

#: The variant of the tree that each format contains, and the function that builds the package.
_FORMATS = {
    "deb": (SYSTEM, deb.build),
    "rpm": (SYSTEM, rpm.build_fedora),
    "el": (PORTABLE, rpm.build_el),
    "tar": (PORTABLE, tar.build),
}


def main() -> None:
    """Build the requested packages, and print their paths."""
    parser = argparse.ArgumentParser(prog="distribution", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory for the packages [dist]")
    parser.add_argument("--wheel", type=Path, help="use this wheel of Innoscope instead of building one")
    parser.add_argument("--version", help="version of the packages [from pyproject.toml]")
    parser.add_argument(
        "--format", choices=_FORMATS, action="append", help="build only this format (may be repeated)"
    )
    parser.add_argument(
        "--machine",
        choices=DEB_NAMES,
        default=platform.machine(),
        help="build for this architecture [the host's]",
    )
    parser.add_argument("--sign-key", metavar="KEY", help="sign with this gpg key (id or name)")
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="innoscope-packages-") as folder:
        made = build(
            wanted.out.resolve(), Path(folder), wanted.wheel, wanted.version, wanted.format, wanted.machine
        )
        signatures = _signed(made, wanted.sign_key) if wanted.sign_key else []
        for path in made + signatures:
            print(f"{path.stat().st_size / 1e6:5.1f} MB  {path}")


def _signed(made: list[Path], key: str) -> list[Path]:
    """Sign the packages. Return the signatures, and, for a .deb, the InRelease of the apt repository."""
    debs = [path for path in made if path.suffix == ".deb"]
    return sign(made, key) + ([apt.repository(debs, key, made[0].parent)] if debs else [])


def build(
    out: Path,
    work: Path,
    ours: Path | None = None,
    version: str | None = None,
    formats: list[str] | None = None,
    machine: str = platform.machine(),
) -> list[Path]:
    """Build the packages in ``out`` and return their paths. ``work`` is an empty directory."""
    metadata = Metadata.read(version, machine)
    libraries = carried.download(work / "libraries", machine)
    parts = Parts(ours or wheel(work), toolchain.core(machine), libraries)
    made = []
    for name in formats or _FORMATS:
        variant, make = _FORMATS[name]
        tree = work / f"tree-{variant.python}"
        if not tree.exists():
            stage(metadata, variant, parts, tree)
        made.append(make(metadata, tree, work / name, out))
    return made


if __name__ == "__main__":
    main()
