"""Incidents of a replica that has stopped with an error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from incidents.lab import Incident
from incidents.scenes_replica import OPTIONS, following
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: ER_DUP_ENTRY
_DUPLICATE = 1062
_ROW = "INSERT INTO shop.stock VALUES (3, 0)"


@contextmanager
def _duplicate(replica: Server) -> Iterator[None]:
    """Insert a row on the replica, then the same row on the source."""
    with following(replica) as pair:
        pair.ask(_ROW)
        pair.change(_ROW)
        until(lambda: pair.status()["Last_SQL_Errno"] == _DUPLICATE)
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


def _failed(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "replication_stopped",
        _duplicate,
        _in_step,
        options=OPTIONS,
        what="a row was inserted on the replica, then on the source: its applier stops (duplicate key)",
        consequences=(),
    )


INCIDENTS = (
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
