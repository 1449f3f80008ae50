"""Safely read files of other users: only regular files, only inside their root, and of limited size."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from innoscope import _native

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO


def open_binary(path: str | Path) -> BinaryIO:
    """Open a regular file. A path below ``/proc/PID/root`` cannot escape that root.

    Raise OSError if it cannot be opened or is not a regular file.
    """
    return os.fdopen(_native.open_regular(str(path)), "rb")


def read_text(path: str | Path, limit: int = 64 << 10) -> str:
    """Return the first ``limit`` bytes of a file as text.

    Raise OSError if it cannot be read or is not a regular file.
    """
    with open_binary(path) as file:
        return file.read(limit).decode(errors="replace")
