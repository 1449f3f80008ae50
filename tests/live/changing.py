"""Use the toggle engine on a test server as ``innoscope toggle`` does, with a separate journal."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pymysql

from innoscope.target.credentials import LoginOptions
from innoscope.target.discover import find_one
from innoscope.toggles import engine, status_file
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.journal import Journal
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pymysql.connections import Connection

    from innoscope.toggles.journal_format import JournalEntry
    from innoscope.toggles.model import Toggle
    from servers import Server

ROOT = LoginOptions(user="root")
#: Values that every server accepts and that are not the default on any server.
NUMBERS = {
    "spin_rounds": "17", "spin_delay": "9", "thread_concurrency": "33", "dirty_page_limit": "5",
    "io_capacity": "30000", "redo_size": "48", "purge_lag": "1000000", "purge_lag_delay": "20000",
    "max_connections": "2600", "semaphore_kill_time": "36000",
}  # fmt: skip
TOO_MANY_CONNECTIONS = 1040


class Changer:
    """A toggle engine for one server, with its journal in ``folder``."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.target = find_one(server.pid)
        self.deps = Dependencies(
            journal=Journal(folder / "state"),
            publish=lambda journal: status_file.publish(journal, folder / "toggles.json"),
        )

    def set(self, toggle: str, value: str, *, backend: str | None = None) -> JournalEntry:
        backends = None if backend is None else [backend]
        plan = engine.plan(self.target, toggle, value, account=ROOT, backends=backends, deps=self.deps)
        return engine.apply(self.target, plan, who="a test", account=ROOT, deps=self.deps)

    def undo(self, entry: JournalEntry) -> JournalEntry:
        return engine.undo(self.target, entry.id, account=ROOT, who="a test", deps=self.deps)

    @contextmanager
    def changed(self, toggle: str, value: str) -> Iterator[JournalEntry]:
        """Set the toggle while the block runs, and undo the change afterwards."""
        entry = self.set(toggle, value)
        try:
            yield entry
        finally:
            self.undo(entry)

    def now(self, toggle: Toggle) -> str | None:
        return engine.values(self.target, [toggle], ROOT, deps=self.deps).get(toggle.name)


def other_value(toggle: Toggle, now: str) -> str:
    """Return a value other than the toggle's current one."""
    if toggle.name in NUMBERS:
        return NUMBERS[toggle.name]
    return next(word for word in toggle.domain.words if not now.startswith(word))


def shown(server: Server, names: list[str]) -> list[Any]:
    """Return the values of the server's global variables ``names``."""
    return list(server.sql("SELECT " + ", ".join(f"@@global.{name}" for name in names))[0])


def fill(stack: ExitStack, server: Server, most: int = 100) -> None:
    """Use up all connections, including the one reserved for administrators.

    The test must have closed all its connections. Those that the server has not yet ended are waited for,
    because their end would free a slot.
    """
    first = stack.enter_context(closing(server.connect()))
    until(lambda: connected(first) == 1, lambda: f"{server.name} has other connections")
    for _ in range(most):
        try:
            stack.enter_context(closing(server.connect(autocommit=None)))
        except pymysql.err.OperationalError as error:
            assert error.args[0] == TOO_MANY_CONNECTIONS  # noqa: PT017
            return
    raise AssertionError(f"{server.name} is not full with {most} connections")


def connected(connection: Connection[Any]) -> int:
    """Return the number of connections. A closed one counts until the server has ended it."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
        [(_, number)] = cursor.fetchall()
        return int(number)
