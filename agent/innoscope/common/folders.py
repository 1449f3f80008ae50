"""Flush directories to disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def sync(folder: Path) -> None:
    """Flush the directory to disk, so that new names in it survive a power failure.

    Raise OSError if it cannot be opened or flushed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
