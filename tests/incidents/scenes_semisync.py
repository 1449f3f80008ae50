"""Define incidents in which commits wait for a replica's acknowledgement (semisynchronous replication)."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from incidents.lab import Incident
from incidents.scenes_replica import Source
from waiting import until
from workloads.clients import Clients, repeating

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_SOURCE: Final = ("--server-id=1", "--log-bin=binlog")
_REPLICA: Final = ("--server-id=2", "--relay-log=relay")
_CLIENTS: Final = 4
#: Milliseconds after which a commit stops waiting and replication becomes asynchronous.
_TIMEOUT_MS: Final = 600_000


@dataclass(frozen=True)
class _Words:
    """The names and statements of semisynchronous replication in MySQL or in MariaDB."""

    source: str  #: prefix of the source's system variables
    replica: str
    follow: str
    start: str
    plugins: bool = True  #: False if semisynchronous replication is built in (MariaDB 10.3 and newer)


_WORDS: Final = {
    "mysql-9.7": _Words(
        "rpl_semi_sync_source",
        "rpl_semi_sync_replica",
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={}, SOURCE_USER='copy',"
        " GET_SOURCE_PUBLIC_KEY=1",
        "START REPLICA",
    ),
    "mariadb-10.11": _Words(
        "rpl_semi_sync_master",
        "rpl_semi_sync_slave",
        "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='copy'",
        "START SLAVE",
        plugins=False,
    ),
}


def _run(server: Server, *statements: str) -> None:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _enable(server: Server, prefix: str, *, plugin: bool) -> None:
    """Enable one side of semisynchronous replication."""
    if plugin:
        _run(
            server,
            f"INSTALL PLUGIN {prefix} SONAME '{prefix.removeprefix('rpl_').replace('_sync', 'sync')}.so'",
        )
    _run(server, f"SET GLOBAL {prefix}_enabled = ON")


@contextmanager
def _writing(server: Server) -> Iterator[None]:
    """Run clients that insert one row per transaction and need an acknowledgement for each."""
    words = _WORDS[server.name]
    _run(
        server,
        "CREATE DATABASE semisync",
        "CREATE TABLE semisync.t (a INT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB",
    )
    _enable(server, words.source, plugin=words.plugins)
    _run(server, f"SET GLOBAL {words.source}_timeout = {_TIMEOUT_MS}")
    with Clients(server, _CLIENTS, "semisync", repeating(["INSERT INTO t VALUES ()"])):
        try:
            yield
        finally:
            _run(server, f"SET GLOBAL {words.source}_enabled = OFF")  # otherwise the clients could never exit


@contextmanager
def _without_replica(server: Server) -> Iterator[None]:
    with _writing(server):
        # With AFTER_SYNC, the leader of a group commit waits for the acknowledgement, and the other threads
        # wait for the leader.
        until(lambda: _waits(server))
        yield


def _waits(server: Server) -> bool:
    """Return whether a commit is waiting for an acknowledgement."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM information_schema.PROCESSLIST"
            " WHERE DB = 'semisync' AND STATE LIKE 'Waiting for semi-sync ACK%' AND TIME > 0"
        )
        return bool(cursor.fetchall())


@contextmanager
def _with_replica(server: Server) -> Iterator[None]:
    words = _WORDS[server.name]
    for host in ("127.0.0.1", "localhost"):
        _run(server, f"CREATE USER 'copy'@'{host}'", f"GRANT REPLICATION SLAVE ON *.* TO 'copy'@'{host}'")
    # A replica acknowledges transactions only if semisync was enabled on the source when it connected.
    with _writing(server), Source(server.name, options=_REPLICA) as replica:
        _enable(replica, words.replica, plugin=words.plugins)
        _run(replica, words.follow.format(server.port), words.start)
        until(lambda: _acknowledged(server, words))
        yield


def _acknowledged(server: Server, words: _Words) -> bool:
    """Return whether a replica has acknowledged a transaction."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW GLOBAL STATUS LIKE '{words.source}_yes_tx'")
        [(_, count)] = cursor.fetchall()
        return int(count) > 0


def _incident(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "semisync_ack",
        _without_replica,
        _with_replica,
        options=_SOURCE,
        what="4 clients commit, and no replica acknowledges the transactions",
    )


INCIDENTS = (_incident("semisync-97", "mysql-9.7"), _incident("semisync-1011", "mariadb-10.11"))
