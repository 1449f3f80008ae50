"""Define incidents with a full disk."""

from __future__ import annotations

import subprocess
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from incidents.lab import Incident
from waiting import until
from workloads.clients import Clients, repeating

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_CLIENTS: Final = 4
#: Size of the database's tmpfs in MiB: too small for the rows of all clients.
_FULL: Final = 2
#: Size of the twin's tmpfs in MiB: more than large enough.
_ROOMY: Final = 256


@contextmanager
def _inserting(server: Server, size_mib: int) -> Iterator[None]:
    """Insert and delete rows of 1 MiB in MyISAM tables whose database is on its own tmpfs."""
    folder = server.folder.data / "shop"
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}M", "innoscope-test", str(folder)]
    subprocess.run(mount, check=True)
    try:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            for number in range(1, _CLIENTS + 1):
                cursor.execute(f"CREATE TABLE shop.t{number} (a LONGBLOB) ENGINE=MyISAM")
        insert = "INSERT INTO t$R VALUES (REPEAT('x', 1 << 20))"
        with Clients(server, _CLIENTS, "shop", repeating([insert, "DELETE FROM t$R"], rows=_CLIENTS)):
            yield
    finally:
        # A thread that is waiting for free space keeps the file open until it retries, after a minute.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def _full(server: Server) -> Iterator[None]:
    with _inserting(server, _FULL):
        until(lambda: _waits(server))
        yield


def _waits(server: Server) -> bool:
    """Return whether an INSERT has been running for at least two seconds."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO LIKE 'INSERT INTO t%' AND TIME >= 2"
        )
        return bool(cursor.fetchall())


def _incident(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "disk_full",
        _full,
        partial(_inserting, size_mib=_ROOMY),
        what="4 clients insert into MyISAM tables on a full disk",
    )


INCIDENTS = (
    _incident("disk-full-56", "mysql-5.6.24"),
    _incident("disk-full-57", "mysql-5.7.22"),
    _incident("disk-full-80", "mysql-8.0.31"),
)
