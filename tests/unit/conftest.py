"""Fixtures of the unit tests."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.common.supervision import Supervisor
from innoscope.common.workers import Workers
from innoscope.sampling.sessions import report

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_PATIENCE_S = 60


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """Yield a directory for tests that call fsync or write a file thousands of times: if possible, in memory.

    On a busy disk, each fsync can take a second. So can rewriting a file, because ext4 flushes a file that
    was truncated and rewritten, even without fsync.
    """
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="innoscope-unit-", dir=parent) as name:
        yield Path(name)


@pytest.fixture
def history_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the memory limit of `innoscope history` by the address space that this process already uses.

    After other tests, it can be almost as large as the limit, because glibc reserves 64 MB for each arena.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    monkeypatch.setattr(report, "MAX_BYTES", report.MAX_BYTES + pages * resource.getpagesize())


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Start worker threads and their scheduler, and yield them."""
    workers = Workers()
    Supervisor().start("workers", workers.run, _PATIENCE_S)
    yield workers
    workers.close()
