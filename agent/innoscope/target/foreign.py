"""Reading files that somebody else may have put there: regular, of bounded size, within their root."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from innoscope import _native

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO


def open_binary(path: str | Path) -> BinaryIO:
    """Open a regular file. A path below ``/proc/PID/root`` never leads out of that root. Raises OSError."""
    return os.fdopen(_native.open_regular(str(path)), "rb")


def read_text(path: str | Path, limit: int = 64 << 10) -> str:
    """Return the beginning of a file, at most ``limit`` bytes of it. Raises OSError."""
    with open_binary(path) as file:
        return file.read(limit).decode(errors="replace")
