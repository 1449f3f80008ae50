"""Fixtures of the unit tests."""

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
    """Yield a folder in memory, for tests that call fsync or write a file thousands of times.

    On a busy disk, each of these calls can take a second. ext4 also writes a file to disk if the file is
    truncated and rewritten.
    """
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="innoscope-unit-", dir=parent) as name:
        yield Path(name)
