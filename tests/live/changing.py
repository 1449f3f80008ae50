"""The real engine on a test server, as ``innoscope toggle`` uses it, with a journal of its own."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pymysql

from innoscope.target.credentials import Account
from innoscope.target.discover import find_one
from innoscope.toggles import engine, status_file
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.toggles.journal_format import Entry
    from innoscope.toggles.model import Toggle
    from servers import Server

ROOT = Account(user="root")
#: A number that no server has by default, within what all of them take.
NUMBERS = {
    "spin_rounds": "17", "spin_delay": "9", "thread_concurrency": "33", "dirty_page_limit": "5",
    "io_capacity": "30000", "redo_size": "48", "purge_lag": "1000000", "purge_lag_delay": "20000",
    "max_connections": "2600", "semaphore_kill_time": "36000",
}  # fmt: skip
TOO_MANY_CONNECTIONS = 1040


class Changer:
    """Sets and undoes toggles of one server; what is changed is remembered in ``folder``."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.target = find_one(server.pid)
        self.deps = Dependencies(
            journal=Journal(folder / "state"),
            publish=lambda journal: status_file.publish(journal, folder / "toggles.json"),
        )

    def set(self, toggle: str, value: str, *, way: str | None = None) -> Entry:
        ways = None if way is None else [way]
        plan = engine.plan(self.target, toggle, value, account=ROOT, ways=ways, deps=self.deps)
        return engine.apply(self.target, plan, who="a test", account=ROOT, deps=self.deps)

    def undo(self, entry: Entry) -> Entry:
        return engine.undo(self.target, entry.id, account=ROOT, who="a test", deps=self.deps)

    @contextmanager
    def changed(self, toggle: str, value: str) -> Iterator[Entry]:
        """Set for the block, and undone after it."""
        entry = self.set(toggle, value)
        try:
            yield entry
        finally:
            self.undo(entry)

    def now(self, toggle: Toggle) -> str | None:
        return engine.values(self.target, [toggle], ROOT, deps=self.deps).get(toggle.name)


def other_value(toggle: Toggle, now: str) -> str:
    """Return one that the toggle does not have now."""
    if toggle.name in NUMBERS:
        return NUMBERS[toggle.name]
    return next(word for word in toggle.domain.words if not now.startswith(word))


def ask(server: Server, statement: str) -> tuple[Any, ...]:
    """The first row of the answer, over a connection of its own."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return tuple(cursor.fetchone())


def shown(server: Server, names: list[str]) -> list[Any]:
    """What the server itself says of its global variables."""
    return list(ask(server, "SELECT " + ", ".join(f"@@global.{name}" for name in names)))


def fill(stack: ExitStack, server: Server, most: int = 100) -> None:
    """Connect until the server says that it is full, the one for administrators included."""
    for _ in range(most):
        try:
            stack.enter_context(closing(server.connect(autocommit=None)))
        except pymysql.err.OperationalError as error:
            assert error.args[0] == TOO_MANY_CONNECTIONS  # noqa: PT017
            return
    raise AssertionError(f"{server.name} is not full with {most} connections")
