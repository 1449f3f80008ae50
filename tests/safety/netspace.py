"""Create two hosts, each a network namespace, and a link between them. All are removed after the test.

The agent runs on ``here`` and its clients run on ``there``. To act on the host ``there``, use
``there.entered()``, or put ``there.prefix`` before a command.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from servers import Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE, HERE_6 = "10.77.0.1", "fd77::1"
THERE, THERE_6 = "10.77.0.2", "fd77::2"
#: The host ``there`` has all addresses of this network.
CROWD = "10.78.0.0/16"
_CLONE_NEWNET = 0x40000000
_START_S = 10


@dataclass(frozen=True)
class Host:
    """One of the two hosts. The process with the pid ``holder`` keeps the host's namespace open."""

    holder: int

    @property
    def prefix(self) -> list[str]:
        """Return a command prefix that runs a command on this host."""
        return ["nsenter", f"--target={self.holder}", "--net", "--"]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this thread create its sockets on this host. The sockets stay there after the block."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            other = os.open(f"/proc/{self.holder}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _set(other)
            finally:
                os.close(other)
            try:
                yield
            finally:
                _set(own)
        finally:
            os.close(own)

    def ip(self, words: str) -> None:
        """Run ``ip`` on this host."""
        subprocess.run([*self.prefix, "ip", *words.split()], check=True)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Yield ``(here, there)``."""
    with Keeper() as keeper, _host(keeper) as here, _host(keeper) as there:
        here.ip(f"link add wire type veth peer name wire netns {there.holder}")
        for host, four, six in ((here, HERE, HERE_6), (there, THERE, THERE_6)):
            host.ip("link set lo up")
            host.ip(f"addr add {four}/24 dev wire")
            host.ip(f"addr add {six}/64 dev wire nodad")
            host.ip("link set wire up")
        here.ip(f"route add {CROWD} via {THERE}")
        there.ip(f"route add local {CROWD} dev lo")
        yield here, there


@contextmanager
def _host(keeper: Keeper) -> Iterator[Host]:
    process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
    keeper.watch(process.pid)
    try:
        deadline = time.monotonic() + _START_S
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield Host(process.pid)
    finally:
        keeper.end(process)


def _set(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
