"""Define incidents in recovery or shutdown, with too little memory, slow clients, or a toggle left on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from incidents.device import slow, squeezed
from incidents.lab import Incident
from safety.recovering import ROOMY, ROOMY_9, TIGHT, TIGHT_9, make_redo
from safety.slow_shutdown import OPTIONS as SLOW_SHUTDOWN
from safety.slow_shutdown import make_backlog
from servers.launch import arguments
from waiting import until
from workloads import Idle, Writers
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from incidents.lab import Scene
    from servers import Server

_Options = Mapping[str, "str | int | None"]
#: Number of times that make_redo and make_backlog double their rows. It is lower than their default: less
#: data is enough, because the device is slow.
_DOUBLINGS = 14
#: Options for mariadb-11.4.5, whose single redo log file must be as large as both files of MySQL 5.6.
_ROOMY_1145 = {**ROOMY, "innodb_log_file_size": "256M"}
_TIGHT_1145 = {**_ROOMY_1145, "innodb_buffer_pool_size": "8M"}


def _recovers(tight: _Options, limit: int) -> Scene:
    """Return a scene that crashes the server with a large amount of redo.

    It restarts the server on a slow device with a small buffer pool.
    """

    @contextlib.contextmanager
    def scene(server: Server) -> Iterator[None]:
        make_redo(server, _DOUBLINGS)
        server.kill()
        server.options = tight
        server.start(wait=False)
        with slow(server, reads=limit, writes=limit):
            yield

    return scene


def _clean(tight: _Options) -> Scene:
    """Return the twin of ``_recovers``, with a clean shutdown before the restart and no slow device."""

    @contextlib.contextmanager
    def scene(server: Server) -> Iterator[None]:
        make_redo(server, _DOUBLINGS)
        server.stop()
        server.options = tight
        server.start()
        with Idle(server, 10):
            yield

    return scene


@contextlib.contextmanager
def _shutting_down(server: Server) -> Iterator[None]:
    """Shut down with a long purge, on a slow device."""
    make_backlog(server, _DOUBLINGS)
    with slow(server, reads=10, writes=10):
        server.process.terminate()
        until(lambda: "shutdown" in server.error_log.read_text(errors="replace").lower())
        yield


@contextlib.contextmanager
def _purged(server: Server) -> Iterator[None]:
    """Delete the same rows as ``_shutting_down``, and wait for the purge instead of shutting down."""
    make_backlog(server, _DOUBLINGS)
    with Idle(server, 10) as idle:
        until(lambda: _history(idle) < 1000)
        yield


def _history(workload: Idle) -> int:
    [(_, _, status)] = workload.sql("SHOW ENGINE INNODB STATUS")
    return int(status.partition("History list length ")[2].split()[0])


def _remembering(server: Server) -> Writers:
    return Writers(server, 4, megabytes=64, rate=2000)


@contextlib.contextmanager
def _swapping(server: Server) -> Iterator[None]:
    """Give the server less memory than its buffer pool."""
    with squeezed(server, 80 << 20), _remembering(server):
        yield


_LONG = "SELECT REPEAT('x', 60000) FROM information_schema.COLLATIONS a, information_schema.COLLATIONS b"


@contextlib.contextmanager
def _nobody_reads(server: Server) -> Iterator[None]:
    """Run clients that request large results and do not read them."""
    with Idle(server, 10) as idle, Crowd(server, 4, idle.database) as crowd:
        crowd.send(_LONG)
        until(lambda: len(idle.listed("STATE LIKE '%end%' OR STATE LIKE '%riting to net%'")) >= 4)
        yield


@contextlib.contextmanager
def _all_read(server: Server) -> Iterator[None]:
    """Run the statement of ``_nobody_reads`` with a LIMIT, and read all rows."""
    with Idle(server, 10) as idle, contextlib.ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(contextlib.closing(server.connect(database=idle.database)))
            with connection.cursor() as cursor:
                cursor.execute(_LONG + " LIMIT 1000")
        yield


@contextlib.contextmanager
def _toggled(server: Server) -> Iterator[None]:
    """Leave a toggle on."""
    with Idle(server, 10):
        _innoscope("toggle", "set", "io_capacity", "1000", "--yes", "--pid", server.pid, "-u", "root")
        yield


@contextlib.contextmanager
def _untoggled(server: Server) -> Iterator[None]:
    """Set the toggle and undo it."""
    with _toggled(server):
        _innoscope("toggle", "undo", "--pid", server.pid, "-u", "root")
        yield


def _innoscope(*words: object) -> None:
    command = [str(Path(sys.executable).with_name("innoscope")), *map(str, words)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _roomy(options: _Options) -> tuple[str, ...]:
    return tuple(arguments(options))


#: Options that keep the rest of the server's memory smaller than its buffer pool.
_MEAGRE = (
    "--performance-schema=OFF",
    "--max-connections=100",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=O_DIRECT",
)


def _recovery(name: str, server: str, roomy: _Options, tight: _Options, limit: int) -> Incident:
    return Incident(
        name,
        server,
        "crash_recovery",
        _recovers(tight, limit),
        _clean(tight),
        options=_roomy(roomy),
        what="crash recovery applies a lot of redo, with a small buffer pool on a slow device",
    )


def _slow_shutdown(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "shutting_down",
        _shutting_down,
        _purged,
        options=_roomy(SLOW_SHUTDOWN),
        what="the server shuts down with innodb_fast_shutdown=0 and a long history list to purge",
    )


INCIDENTS = (
    _recovery("crash-recovery-56", "mysql-5.6.24", ROOMY, TIGHT, 40),
    _recovery("crash-recovery-57", "mysql-5.7.22", ROOMY, TIGHT, 40),
    _recovery("crash-recovery-80", "mysql-8.0.31", ROOMY_9, TIGHT_9, 200),
    _recovery("crash-recovery-97", "mysql-9.7", ROOMY_9, TIGHT_9, 200),
    _recovery("crash-recovery-1145", "mariadb-11.4.5", _ROOMY_1145, _TIGHT_1145, 40),
    _slow_shutdown("slow-shutdown-56", "mysql-5.6.24"),
    _slow_shutdown("slow-shutdown-57", "mysql-5.7.22"),
    _slow_shutdown("slow-shutdown-80", "mysql-8.0.31"),
    Incident(
        "memory-pressure",
        "mysql-5.6.24",
        "memory_pressure",
        _swapping,
        _remembering,
        options=_MEAGRE,
        what="the memory limit is smaller than the buffer pool, so part of the pool is swapped out",
    ),
    Incident(
        "network-send",
        "mariadb-11.4.5",
        "network",
        _nobody_reads,
        _all_read,
        what="clients request large results and do not read them",
    ),
    Incident(
        "toggle-left-on",
        "mysql-5.6.24",
        "toggle_left_on",
        _toggled,
        _untoggled,
        what="a change made by `innoscope toggle` was not undone",
    ),
)
