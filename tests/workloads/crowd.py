"""A thousand connections in one thread: each is sent its statement, and nobody waits for an answer."""

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

#: Descriptors that the test process needs for itself.
_SPARE = 256


class Crowd:
    """``count`` connections to one database. The statements of ``setup`` are run on each and waited for."""

    def __init__(self, server: Server, count: int, database: str, setup: Sequence[str] = ()) -> None:
        _allow_descriptors(count)
        self._connections: list[Any] = []
        try:
            for _ in range(count):
                # autocommit=None: nothing but the handshake is sent, so the connection is idle from the start
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
        """The connection ids."""
        return [int(connection.thread_id()) for connection in self._connections]

    def send(self, *statements: str) -> None:
        """Send them around, one per connection, and read no result: after this, one can only close them."""
        for connection, statement in zip(self._connections, itertools.cycle(statements), strict=False):
            connection._execute_command(COM_QUERY, statement)

    def check(self) -> None:
        """Fail if one of them, meant to be busy for ever, got an answer; say which."""
        poller = select.poll()
        connections = {connection._sock.fileno(): connection for connection in self._connections}
        for descriptor in connections:
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(0):
            answer = "its result"
            try:
                connections[descriptor]._read_query_result()
            except pymysql.err.MySQLError as error:
                answer = str(error)
            raise WorkloadError(f"a statement that should not have ended got {answer}")

    def close(self) -> None:
        """Close the sockets without a word: most are in the middle of a statement."""
        for connection in self._connections:
            connection._force_close()


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
