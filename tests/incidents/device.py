"""Limit one server's disk I/O, memory or CPU time with cgroups."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_BLKIO: Final = Path("/sys/fs/cgroup/blkio")
_CPU: Final = Path("/sys/fs/cgroup/cpu")
_MEMORY: Final = Path("/sys/fs/cgroup/memory")
_WITHIN_S: Final = 30
_SWAP: Final = 256 << 20
_UNLIMITED: Final = 0


@contextmanager
def slow(server: Server, *, reads: int = _UNLIMITED, writes: int = _UNLIMITED) -> Iterator[None]:
    """Limit a server's reads and writes per second on its data device while the block runs.

    This needs root and cgroup v1. cgroup v2 would also limit writeback, but the hosts of these tests do not
    have its io controller.
    """
    group = _BLKIO / f"innoscope-{server.pid}"
    group.mkdir()
    try:
        for what, limit in (("read", reads), ("write", writes)):
            (group / f"blkio.throttle.{what}_iops_device").write_text(f"{_device(server)} {limit}")
        (group / "cgroup.procs").write_text(str(server.pid))
        yield
    finally:
        for what in ("read", "write"):
            (group / f"blkio.throttle.{what}_iops_device").write_text(f"{_device(server)} {_UNLIMITED}")
        _leave(server, group, _BLKIO)


@contextmanager
def quota(server: Server, cpus: float) -> Iterator[None]:
    """Limit the server's CPU time to ``cpus`` CPUs while the block runs."""
    group = _CPU / f"innoscope-{server.pid}"
    group.mkdir()
    try:
        period_us = int((group / "cpu.cfs_period_us").read_text())
        (group / "cpu.cfs_quota_us").write_text(str(int(cpus * period_us)))
        (group / "cgroup.procs").write_text(str(server.pid))
        yield
    finally:
        (group / "cpu.cfs_quota_us").write_text("-1")
        _leave(server, group, _CPU)


def _leave(server: Server, group: Path, home: Path) -> None:
    """Move the server out of the group and remove the group; wait for a server that is still exiting."""
    if server.running:
        with suppress(ProcessLookupError):
            (home / "cgroup.procs").write_text(str(server.pid))
    deadline = time.monotonic() + _WITHIN_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _device(server: Server) -> str:
    number = server.folder.data.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@contextmanager
def squeezed(server: Server, limit: int) -> Iterator[None]:
    """Restart the server with a memory limit in bytes; the kernel swaps out the pages beyond the limit."""
    group, home = _MEMORY / f"innoscope-{server.pid}", _home()
    with _swap_space(server):
        group.mkdir()
        try:
            (group / "memory.swappiness").write_text("100")
            (group / "memory.limit_in_bytes").write_text(str(limit))
            server.stop()
            server.start(wait=False)  # move it early: a page is charged to the cgroup that touches it first
            (group / "cgroup.procs").write_text(str(server.pid))
            server.wait_ready()
            yield
        finally:
            (group / "memory.limit_in_bytes").write_text("-1")
            _leave(server, group, home)


@contextmanager
def _swap_space(server: Server) -> Iterator[None]:
    """Add a file in the server's directory to the host's swap space."""
    path = server.folder.path / "swap"
    with path.open("wb") as file:
        path.chmod(0o600)
        for _ in range(_SWAP >> 20):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    for command in ("mkswap", "swapon"):
        subprocess.run([command, str(path)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["swapoff", str(path)], check=True, capture_output=True)
        path.unlink()


def _home() -> Path:
    """Return the memory cgroup of this process."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _MEMORY / path.lstrip("/")
    raise LookupError("no memory cgroup of version 1")
