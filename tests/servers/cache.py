"""The cache outside the tree: where it is, one writer at a time, whole folders or none."""

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
    """``$INNOSCOPE_CACHE``, else ``innoscope`` in the user's cache folder."""
    own = os.environ.get("INNOSCOPE_CACHE")
    if own:
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).absolute() / "innoscope"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock ``name``; it falls with the process, however that ends."""
    folder = root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes ``target`` by one rename if the block succeeds, and is removed if not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    scratch.chmod(0o755)  # a server that drops its privileges must get through
    try:
        yield scratch
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
