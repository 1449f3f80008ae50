"""Use many connections from one thread: send a statement on each, without waiting for replies."""

from __future__ import annotations

import itertools
import resource
import select
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants.COMMAND import COM_QUERY

from workloads.base import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servers import Server

#: Number of descriptors that the test process needs for other purposes.
_SPARE = 256


class Crowd:
    """Context manager: ``count`` connections to one database, each of which runs ``setup`` first."""

    def __init__(self, server: Server, count: int, database: str, setup: Sequence[str] = ()) -> None:
        _allow_descriptors(count)
        self._connections: list[Any] = []
        try:
            for _ in range(count):
                # autocommit=None sends only the handshake, so the connection is idle from the start
                connection = server.connect(database=database, autocommit=None)
                self._connections.append(connection)
                for statement in setup:
                    connection.query(statement)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ids(self) -> list[int]:
        return [int(connection.thread_id()) for connection in self._connections]

    def send(self, *statements: str) -> None:
        """Send one statement per connection and read no results. The connections can then only be closed."""
        for connection, statement in zip(self._connections, itertools.cycle(statements), strict=False):
            connection._execute_command(COM_QUERY, statement)

    def check(self) -> None:
        """Raise WorkloadError if one of the endless statements has ended."""
        poller = select.poll()
        connections = {connection._sock.fileno(): connection for connection in self._connections}
        for descriptor in connections:
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(0):
            reply = "its result"
            try:
                connections[descriptor]._read_query_result()
            except pymysql.err.MySQLError as error:
                reply = str(error)
            raise WorkloadError(f"a statement that should not have ended returned {reply}")

    def close(self) -> None:
        """Close the sockets without COM_QUIT, because most are in the middle of a statement."""
        for connection in self._connections:
            connection._force_close()


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
