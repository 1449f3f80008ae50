"""A slow device under one server, or little memory, made by the kernel: what is measured then is true."""

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
_MEMORY: Final = Path("/sys/fs/cgroup/memory")
_WITHIN_S: Final = 30
_SWAP: Final = 256 << 20
_UNLIMITED: Final = 0


@contextmanager
def slow(server: Server, *, reads: int = _UNLIMITED, writes: int = _UNLIMITED) -> Iterator[None]:
    """For the block, the device of the server's data does so many reads and writes a second for it, no more.

    Needs root and control groups of version 1: those of version 2 would count what the kernel writes
    back later too, but the few machines that run these tests have none for devices.
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
        _left(server, group, _BLKIO)


def _left(server: Server, group: Path, home: Path) -> None:
    """Take the server out of the group, and remove that; a server that is ending goes by itself."""
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
    """Start it again; for the block it may keep so many bytes in memory; the rest is swapped out."""
    group, home = _MEMORY / f"innoscope-{server.pid}", _home()
    with _swap_space(server):
        group.mkdir()
        try:
            (group / "memory.swappiness").write_text("100")
            (group / "memory.limit_in_bytes").write_text(str(limit))
            server.stop()
            server.start(wait=False)  # pages belong to the group in which they are first touched
            (group / "cgroup.procs").write_text(str(server.pid))
            server.wait_ready()
            yield
        finally:
            (group / "memory.limit_in_bytes").write_text("-1")
            _left(server, group, home)


@contextmanager
def _swap_space(server: Server) -> Iterator[None]:
    """A file of the server's folder as swap space of the host."""
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
    """Our own group."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _MEMORY / path.lstrip("/")
    raise LookupError("no memory control group of version 1")
