"""Sign packages with the builder's key: each .rpm, and SHA256SUMS, which covers all packages."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

from distribution.metadata import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUMS = "SHA256SUMS"


def sign(packages: Sequence[Path], key: str) -> list[Path]:
    """Sign the packages with a gpg key (id or name). Return SHA256SUMS and its signature."""
    gpg = shutil.which("gpg")
    if gpg is None:
        raise SystemExit("cannot sign: gpg is missing; apt-get install gnupg")
    named = ("--define", f"_gpg_name {key}", "--define", f"__gpg {gpg}")  # rpm only looks for gpg2 by default
    for package in packages:
        if package.suffix == ".rpm":
            run(["rpmsign", *named, "--addsign", str(package)])
    sums = packages[0].parent / SUMS
    lines = (f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in packages)
    sums.write_text("".join(sorted(lines)))
    signature = sums.with_name(f"{SUMS}.asc")
    command = [gpg, "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign"]
    run([*command, "--output", str(signature), str(sums)])
    return [sums, signature]
