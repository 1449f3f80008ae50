"""Change and undo a real server's settings in processes that tests can kill, and check the outcome."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from innoscope.target.credentials import LoginOptions
from innoscope.target.discover import find_one
from innoscope.toggles import engine
from innoscope.toggles.journal import Journal
from safety.well import assert_well, held_threads
from scale import count

if TYPE_CHECKING:
    from innoscope.target.model import Target
    from innoscope.toggles.journal_format import JournalEntry
    from servers import Server

ACCOUNT = LoginOptions()
#: Number of kills at random times in each test.
KILLS = count(quick=4, full=200)
#: Maximum seconds until no thread of a server is stopped or traced.
WELL_S = 2.0
_MAIN = Path(__file__).with_name("toggle_main.py")


@dataclass(frozen=True)
class Change:
    """A change to a toggle, and the system variables that show the new value."""

    toggle: str
    value: str
    backend: str
    variables: tuple[str, ...]
    after: tuple[Any, ...]


READ_AHEAD = Change(
    "read_ahead", "off", "sql", ("innodb_read_ahead_threshold", "innodb_random_read_ahead"), (0, 0)
)
CONNECTIONS = Change("max_connections", "2600", "memory", ("max_connections",), (2600,))


@dataclass(frozen=True)
class Subject:
    """The server whose settings change, and the journal of the changes."""

    server: Server

    @property
    def target(self) -> Target:
        return find_one(self.server.pid)

    @property
    def journal(self) -> Journal:
        return Journal()

    def values(self, change: Change) -> tuple[Any, ...]:
        columns = ", ".join(f"@@global.{name}" for name in change.variables)
        return tuple(map(int, self.ask(f"SELECT {columns}")))

    def ask(self, statement: str) -> tuple[Any, ...]:
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone()
        return row or ()

    def set(self, change: Change, point: str = "-", seconds: float = 0.0) -> subprocess.Popen[bytes]:
        """Start the change in a separate process."""
        arguments = [change.toggle, change.value, change.backend, str(seconds), point]
        return _start("set", self.server.pid, *arguments)

    def undo(self, point: str = "-") -> subprocess.Popen[bytes]:
        """Start the undo of the last change in a separate process."""
        return _start("undo", self.server.pid, point)

    def undo_here(self) -> JournalEntry:
        """Undo the last change in this process."""
        return engine.undo(self.target, None, account=ACCOUNT, who="test")

    def last(self) -> JournalEntry | None:
        """Return the last change that is not an undo, or None."""
        changes = [entry for entry in self.journal.entries() if entry.undoes is None]
        return changes[-1] if changes else None

    def assert_well(self) -> None:
        """Check that within WELL_S no thread is stopped or traced, and that the server then responds."""
        deadline = time.monotonic() + WELL_S
        while held := held_threads(self.server.pid):
            assert time.monotonic() < deadline, held
            time.sleep(0.01)
        assert_well(self.server)


def assert_journal_matches(subject: Subject, change: Change, before: tuple[Any, ...]) -> None:
    """Check that the server's values agree with the journal's outcome of the last change."""
    entry, now = subject.last(), subject.values(change)
    if entry is None or entry.outcome in ("undone", "not written"):
        assert now == before, entry
    elif entry.outcome == "done":
        undoing = any(one.undoes == entry.id for one in subject.journal.entries())
        assert now == change.after or undoing, entry
    else:
        assert entry.outcome == "intended", entry


def _start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(_MAIN), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
