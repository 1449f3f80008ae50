"""``python -m container``: build the OCI image and its bill of materials in dist/."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from container import image, root, sbom
from distribution.metadata import ROOT, Metadata


def main() -> None:
    """Build the image from the .deb in ``--out``, and print the paths of the image and of its SBOM."""
    parser = argparse.ArgumentParser(prog="container", description=__doc__)
    parser.add_argument("--deb", type=Path, help="the package [the one in --out]")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory for the image [dist]")
    wanted = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("container: building the image needs root; run: sudo make image")
    metadata = Metadata.read()
    deb = wanted.deb or wanted.out / metadata.deb_name
    if not deb.exists():
        raise SystemExit(f"container: {deb} does not exist; run: make packages")
    for path in build(deb, metadata, wanted.out):
        print(f"{path.stat().st_size / 1e6:5.1f} MB  {path}")


def build(deb: Path, metadata: Metadata, out: Path, options: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """Build the image. Return the paths of the OCI archive and of the SBOM. ``options`` are mmdebstrap's."""
    archive, document = (out / f"{metadata.tar_name}.{end}" for end in ("oci.tar", "oci.cdx.json"))
    with tempfile.TemporaryDirectory(prefix="innoscope-image-", dir="/var/tmp") as folder:
        files = Path(folder) / "root.tar"
        root.make(deb.resolve(), metadata, files, options)
        document.write_text(sbom.text(metadata, files))
        image.write(files, metadata, archive, Path(folder))
    return archive, document


if __name__ == "__main__":
    main()
