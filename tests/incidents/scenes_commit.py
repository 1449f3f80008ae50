"""Define incidents in which commits wait for a slow device or for a configured delay."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from incidents.device import slow
from incidents.lab import Incident
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_BINLOG: Final = ("--log-bin=binlog", "--server-id=1", "--sync-binlog=1")
#: Microseconds for which the leader of a group commit waits for more transactions.
_DELAY: Final = "--binlog-group-commit-sync-delay=200000"


def _committing(server: Server) -> Fsync:
    return Fsync(server, 8)


@contextmanager
def _slow_commits(server: Server) -> Iterator[None]:
    with _committing(server), slow(server, writes=40):
        yield


INCIDENTS = (
    Incident(
        "slow-commits-80",
        "mysql-8.0.31",
        "commit_fsync",
        _slow_commits,
        _committing,
        options=_BINLOG,
        twin_options=("--innodb-flush-log-at-trx-commit=0",),
        also=("io_throttled",),
        what="8 clients commit, with a binary log, on a device that is limited to 40 writes/s",
    ),
    Incident(
        "commit-delay-80",
        "mysql-8.0.31",
        "unexplained",
        _committing,
        _committing,
        options=(*_BINLOG, _DELAY),
        twin_options=_BINLOG,
        what="8 clients commit, and binlog_group_commit_sync_delay delays each group commit by 200 ms",
    ),
)
