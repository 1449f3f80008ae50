"""Manage the cache of downloads, which is outside the source tree and contains only complete directories."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def root() -> Path:
    """Return ``$INNOSCOPE_CACHE``, or by default ``innoscope`` in the user's cache directory."""
    own = os.environ.get("INNOSCOPE_CACHE")
    if own:
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).absolute() / "innoscope"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock ``name``; it is released when the process exits."""
    folder = root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """Yield a scratch directory; rename it to ``target`` if the block succeeds, and remove it otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    scratch.chmod(0o755)  # a server that drops its privileges must be able to enter
    try:
        yield scratch
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sha256(path: Path) -> str:
    """Return the file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
