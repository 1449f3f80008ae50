"""Start servers with many connections, and the loads of the benchmarks."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from servers import Server
from workloads import Cpu, Idle, Oltp, RowLock, Sleep, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.settings import Settings
    from workloads import Workload

#: Number of waiters for the row lock. If more than 200 transactions wait for one lock, MySQL 5.6 reports a
#: deadlock.
_WAITERS = 100


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


@contextmanager
def crowded(name: str, connections: int, *, mixed: bool) -> Iterator[Server]:
    """Yield a server whose connections are idle; if ``mixed``, some run SLEEP or wait for a row lock."""
    say(f"{name}: starting it with {connections:,} connections")
    waiters = min(_WAITERS, connections // 10) if mixed else 0
    sleepers = 3 * connections // 10 if mixed else 0
    with Server(name) as server, Idle(server, connections - waiters - sleepers):
        if not mixed:
            yield server
            return
        with Sleep(server, sleepers), RowLock(server, waiters):
            yield server


def probe_load(server: Server, name: str, settings: Settings) -> Workload:
    """Return the load ``oltp`` or ``storm``, for the benchmarks ``probes`` and ``diagnose``."""
    if name == "oltp":
        return Oltp(server, settings.oltp_clients)
    return UpdateStorm(server, settings.storm_clients)


@contextmanager
def busy(server: Server, clients: int) -> Iterator[Cpu | None]:
    """Run clients that read single rows continuously, until the block ends; yield None without clients."""
    if not clients:
        yield None
        return
    with Cpu(server, clients) as load:
        yield load
