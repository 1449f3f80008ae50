"""A server with a thousand threads, a load on it and a client that measures its answers."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from servers import Server
from workloads import Cpu, Idle, RowLock, Sleep

if TYPE_CHECKING:
    from collections.abc import Iterator

#: MySQL 5.6 takes a queue of more than 200 for a deadlock.
_WAITERS = 100


def say(text: str) -> None:
    """Progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@contextmanager
def crowded(name: str, connections: int, *, mixed: bool) -> Iterator[Server]:
    """The server with so many connections: idle ones, or a mix as in the baseline."""
    say(f"{name}: starting it with {connections:,} connections")
    waiters = min(_WAITERS, connections // 10) if mixed else 0
    sleepers = 3 * connections // 10 if mixed else 0
    with Server(name) as server, Idle(server, connections - waiters - sleepers):
        if not mixed:
            yield server
            return
        with Sleep(server, sleepers), RowLock(server, waiters):
            yield server


@contextmanager
def busy(server: Server, clients: int) -> Iterator[Cpu | None]:
    """So many clients that read single rows without pause; none at all for 0."""
    if not clients:
        yield None
        return
    with Cpu(server, clients) as load:
        yield load
