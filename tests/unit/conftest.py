"""A folder for the unit tests that is not on a disk."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """Make a folder in memory, for tests that write to disk (fsync) or write a file thousands of times.

    On a busy disk each of these writes can take a second: ext4 also forces a file to disk that was emptied
    and written again.
    """
    place = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="innoscope-unit-", dir=place) as name:
        yield Path(name)
