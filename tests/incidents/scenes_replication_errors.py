"""Define incidents on a replica that has stopped, or that applies changes slowly."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from incidents.lab import Incident
from incidents.scenes_replica import OPTIONS, Pair, following
from incidents.table_filling import doubled
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Error number of ER_DUP_ENTRY.
_DUPLICATE = 1062
#: Number of rows in the changed table.
_ROWS = 200_000
#: The replica's lag in seconds at which it is diagnosed.
_BEHIND = 8
_ROW = "INSERT INTO shop.stock VALUES (3, 0)"


@contextmanager
def _duplicate(replica: Server) -> Iterator[None]:
    """Insert a row on the replica, then the same row on the source."""
    with following(replica) as pair:
        pair.ask(_ROW)
        pair.change(_ROW)
        until(lambda: pair.errno() == _DUPLICATE)
        yield


@contextmanager
def _in_step(replica: Server) -> Iterator[None]:
    with following(replica) as pair:
        pair.change(_ROW)
        until(lambda: pair.ask("SELECT * FROM shop.stock WHERE a = 3"))
        yield


@contextmanager
def _stopped(replica: Server) -> Iterator[None]:
    with following(replica) as pair:
        pair.stop()
        yield


@contextmanager
def _changed(replica: Server, key: str = "") -> Iterator[Pair]:
    """Change all rows of a table on the source."""
    with following(replica) as pair:
        pair.change(f"CREATE TABLE shop.visits (a BIGINT UNSIGNED{key}, b INT) ENGINE=InnoDB")
        for statement in doubled("shop.visits", "a, b", "UUID_SHORT(), 0", _ROWS):
            pair.change(statement)
        until(lambda: pair.ask(f"SELECT COUNT(*) FROM shop.visits HAVING COUNT(*) = {_ROWS}"))
        pair.change("UPDATE shop.visits SET b = b + 1")
        yield pair


@contextmanager
def _without_key(replica: Server) -> Iterator[None]:
    with _changed(replica) as pair:
        until(lambda: pair.behind() >= _BEHIND)
        yield


@contextmanager
def _with_key(replica: Server) -> Iterator[None]:
    with _changed(replica, " PRIMARY KEY"):
        yield


def _failed(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "replication_stopped",
        _duplicate,
        _in_step,
        options=OPTIONS,
        what="the same row was inserted on replica and source, so the applier stopped (duplicate key)",
        consequences=(),
    )


def _keyless(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "applier_without_key",
        _without_key,
        _with_key,
        options=OPTIONS,
        what="an UPDATE on the source changed all rows of a table without a primary key (binlog_format=ROW)",
    )


INCIDENTS = (
    _keyless("applier-without-key-57", "mysql-5.7.22"),
    _keyless("applier-without-key-80", "mysql-8.0.31"),
    _keyless("applier-without-key-1011", "mariadb-10.11"),
    _failed("replica-stopped-57", "mysql-5.7.22"),
    _failed("replica-stopped-80", "mysql-8.0.31"),
    _failed("replica-stopped-1011", "mariadb-10.11"),
    Incident(
        "replica-off-80",
        "mysql-8.0.31",
        "replication_off",
        _stopped,
        _in_step,
        options=OPTIONS,
        what="an operator has stopped the replica",
        consequences=(),
    ),
)
