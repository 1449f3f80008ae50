"""Provide the loads that the documentation's examples need in addition to the workloads."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from servers import Server


class Load(Protocol):
    """A load on a server. The load runs until its block ends."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


class Copy:
    """A loop of ``CREATE TABLE … SELECT``, whose locks and pages do not fit into the buffer pool."""

    server_options: ClassVar[tuple[str, ...]] = (
        "--innodb-buffer-pool-size=8M",
        "--innodb-flush-log-at-trx-commit=0",
    )
    _ROWS: ClassVar[int] = 1 << 19

    def __init__(self, server: Server, _: int = 1) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._copy)

    def __enter__(self) -> Self:
        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE copy")
            cursor.execute("CREATE TABLE copy.t (a INT PRIMARY KEY AUTO_INCREMENT, b INT) ENGINE=InnoDB")
            cursor.execute("INSERT INTO copy.t (b) VALUES (1)")
            while cursor.lastrowid < self._ROWS // 2:
                cursor.execute("INSERT INTO copy.t (b) SELECT b FROM copy.t")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _copy(self) -> None:
        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            while not self._ended.is_set():
                cursor.execute("CREATE TABLE copy.copy ENGINE=InnoDB SELECT * FROM copy.t")
                cursor.execute("DROP TABLE copy.copy")


LOADS: Mapping[str, Callable[[Server, int], Load]] = {**WORKLOADS, "copy": Copy}


def server_options(name: str) -> tuple[str, ...]:
    """Return the server options that the load ``name`` needs."""
    return tuple(getattr(LOADS[name], "server_options", ()))
