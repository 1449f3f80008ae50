"""Define incidents on a replication group. Each scene yields the member to diagnose."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from clusters import ReplicationGroup
from clusters.group_replication import SERVER
from incidents.lab import Incident
from waiting import until
from workloads.clients import Clients, repeating
from workloads.late_replies import late_replies
from workloads.table_lock import table_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Queue length at which flow control limits the commits.
_LIMIT: Final = 100
_OPTIONS: Final = (
    f"--loose-group-replication-flow-control-applier-threshold={_LIMIT}",
    "--innodb-flush-log-at-trx-commit=0",
    "--sync-binlog=0",
)
_WRITERS: Final = 6
#: Changes per second of all writers together; the members can apply far more.
_RATE: Final = 150
#: Changes per second: so few that commits hardly ever wait, unless the other members reply late.
_FEW: Final = 10
_ROWS: Final = 1_000
_WITHIN_S: Final = 60
_COMMITTED: Final = "SELECT SUM(b) FROM shop.stock"


@contextmanager
def _written(first: Server, rate: int = _RATE) -> Iterator[ReplicationGroup]:
    """Run writers on the primary."""
    rows = ", ".join(f"({row}, 0)" for row in range(1, _ROWS + 1))
    with ReplicationGroup(first) as group:
        first.sql(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.stock (a INT PRIMARY KEY, b INT)",
            f"INSERT INTO shop.stock VALUES {rows}",
        )
        group.wait_for_rows("shop", "stock", _ROWS)
        script = repeating(["UPDATE stock SET b = b + 1 WHERE a = $R"], _ROWS)
        with Clients(first, _WRITERS, "shop", [*script, f"--rate={rate}"]):
            until(lambda: int(first.sql(_COMMITTED)[0][0]) > (rate or _RATE), within_s=_WITHIN_S)
            yield group


@contextmanager
def _locked(first: Server, diagnosed: int) -> Iterator[Server]:
    """Block the applier of the last member with LOCK TABLES, until flow control delays the writers."""
    with _written(first, rate=0) as group, table_lock(group.nodes[-1], "shop", "stock"):
        until(lambda: _queue(first) > 10 * _LIMIT, within_s=_WITHIN_S)
        yield group.nodes[diagnosed]


def _queue(node: Server) -> int:
    [(queue,)] = node.sql(
        "SELECT MAX(COUNT_TRANSACTIONS_REMOTE_IN_APPLIER_QUEUE)"
        " FROM performance_schema.replication_group_member_stats"
    )
    return int(queue)


@contextmanager
def _unlocked(first: Server, diagnosed: int) -> Iterator[Server]:
    """Run a load that all members can apply, and lock the table only for a moment."""
    with _written(first) as group:
        with table_lock(group.nodes[-1], "shop", "stock"):
            pass
        yield group.nodes[diagnosed]


@contextmanager
def _replies(first: Server, *, late: bool) -> Iterator[Server]:
    """Write on the primary, and let the other members reply late or in time."""
    with _written(first, _FEW) as group, late_replies(group.nodes[1:]) if late else nullcontext():
        yield first


@contextmanager
def _without_majority(first: Server) -> Iterator[Server]:
    """Stop the processes of two of the three members while the block runs."""
    with _written(first) as group:
        stopped = [node.pid for node in group.nodes[1:]]
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            until(lambda: _unreachable(first) == len(stopped), within_s=_WITHIN_S)
            yield first
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)


def _unreachable(node: Server) -> int:
    [(count,)] = node.sql(
        "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'UNREACHABLE'"
    )
    return int(count)


INCIDENTS = (
    Incident(
        "group-flow-control-97",
        SERVER,
        "group_replication_wait",
        partial(_locked, diagnosed=0),
        partial(_unlocked, diagnosed=0),
        options=_OPTIONS,
        what="LOCK TABLES on another member blocks its applier, and flow control delays the writers",
    ),
    Incident(
        "group-slow-member-97",
        SERVER,
        "replication_applier",
        partial(_locked, diagnosed=-1),
        partial(_unlocked, diagnosed=-1),
        options=_OPTIONS,
        what="LOCK TABLES on this secondary blocks its applier, and flow control delays the writers",
    ),
    Incident(
        "group-majority-lost-97",
        SERVER,
        "group_replication_wait",
        _without_majority,
        partial(_unlocked, diagnosed=0),
        options=_OPTIONS,
        what="two of three members are stopped (SIGSTOP), and no commit gets a majority",
    ),
    Incident(
        "group-late-replies-97",
        SERVER,
        "group_replication_commit",
        partial(_replies, late=True),
        partial(_replies, late=False),
        options=_OPTIONS,
        what="the other members are stopped (SIGSTOP) for 1.5 s at a time, and each commit waits for them",
    ),
)
