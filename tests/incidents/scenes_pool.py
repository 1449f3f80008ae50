"""Define incidents in which an operation on the whole buffer pool makes all other threads wait."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

import pymysql

from incidents.lab import Incident
from workloads import Readers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymysql.connections import Connection

    from servers import Server

_CLIENTS: Final = 8
_SIZES: Final = (1 << 30, 4 << 30)
#: A resize initialises all blocks, even those that never held a page, so the pool need not be filled.
_POOL: Final = (f"--innodb-buffer-pool-size={_SIZES[-1]}", "--innodb-buffer-pool-instances=1")
#: Seconds between two attempts to resize a pool that is being resized.
_AGAIN_S: Final = 0.02


def _reading(server: Server) -> Readers:
    """Read rows of a table in the buffer pool, at a limited rate."""
    return Readers(server, _CLIENTS, megabytes=8, rate=400)


@contextlib.contextmanager
def _while_resizing(server: Server) -> Iterator[None]:
    """Read rows while another client keeps resizing the buffer pool."""
    ended = threading.Event()
    with _reading(server), contextlib.closing(server.connect()) as connection:
        thread = threading.Thread(target=_resize, args=(connection, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _resize(connection: Connection[Any], ended: threading.Event) -> None:
    with connection.cursor() as cursor:
        while not ended.wait(_AGAIN_S):
            for size in _SIZES:
                with contextlib.suppress(pymysql.err.MySQLError):  # the previous resize is not complete
                    cursor.execute(f"SET GLOBAL innodb_buffer_pool_size = {size}")


def _resizing(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "pool_scan",
        _while_resizing,
        _reading,
        options=_POOL,
        what="8 clients read rows while another keeps resizing the buffer pool between 1 GB and 4 GB",
    )


INCIDENTS = (
    _resizing("pool-resize-57", "mysql-5.7.22"),
    _resizing("pool-resize-80", "mysql-8.0.31"),
)
