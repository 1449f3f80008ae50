"""A slow device under one server, made by the kernel: what it measures there is true."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_BLKIO: Final = Path("/sys/fs/cgroup/blkio")
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
        if server.running:
            (_BLKIO / "cgroup.procs").write_text(str(server.pid))
        group.rmdir()


def _device(server: Server) -> str:
    number = server.folder.data.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@contextmanager
def squeezed(server: Server, share: float) -> Iterator[None]:
    """For the block, the server may keep only so much of its memory; what is over that goes to swap space."""
    resident = _resident(server)
    group = Path("/sys/fs/cgroup/memory") / f"innoscope-{server.pid}"
    home = _group_of(server)
    with _swap_space(server, resident):
        group.mkdir()
        try:
            (group / "memory.swappiness").write_text("100")
            (group / "memory.move_charge_at_immigrate").write_text("3")
            (group / "cgroup.procs").write_text(str(server.pid))
            (group / "memory.limit_in_bytes").write_text(str(int(share * resident)))
            yield
        finally:
            if server.running:
                (group / "memory.limit_in_bytes").write_text("-1")
                (home / "cgroup.procs").write_text(str(server.pid))
            group.rmdir()


@contextmanager
def _swap_space(server: Server, size: int) -> Iterator[None]:
    """A file of the server's folder as the host's swap space."""
    path = server.folder.path / "swap"
    with path.open("wb") as file:
        path.chmod(0o600)
        for _ in range(1 + (size >> 20)):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    subprocess.run(["mkswap", str(path)], check=True, capture_output=True)
    subprocess.run(["swapon", str(path)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["swapoff", str(path)], check=True, capture_output=True)


def _resident(server: Server) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _group_of(server: Server) -> Path:
    for line in Path(f"/proc/{server.pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    raise LookupError("no memory group of version 1")
