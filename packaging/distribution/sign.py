"""Signatures with the builder's own key: inside of the .rpm, and over SHA256SUMS of all packages."""

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
    """Sign them with a secret key of gpg's, by id or name; return SHA256SUMS and its signature."""
    gpg = shutil.which("gpg")
    if gpg is None:
        raise SystemExit("cannot sign: there is no gpg; apt-get install gnupg")
    named = ("--define", f"_gpg_name {key}", "--define", f"__gpg {gpg}")  # rpm looks for gpg2 only
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
