"""What the engine works with: the catalog, the writers, the journal, the facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from innoscope.toggles import catalog, facts
from innoscope.toggles.gdbway import GdbWriter
from innoscope.toggles.journal import Journal
from innoscope.toggles.memoryway import MemoryWriter
from innoscope.toggles.sqlway import SqlWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.doctor.server import Account
    from innoscope.target.model import Target
    from innoscope.toggles.model import Toggle, Writer

#: Seconds after which a call through gdb is given up and the server goes on.
GDB_DEADLINE_S: Final = 10.0


def open_writer(kind: str, target: Target, account: Account) -> Writer:
    """The writer for one way; close it after use. Raises what making it raises."""
    if kind == "sql":
        return SqlWriter(target, account)
    if kind == "memory":
        return MemoryWriter(target)
    if kind == "gdb":
        return GdbWriter(target, deadline_s=GDB_DEADLINE_S)
    raise ValueError(f"no such way: {kind}")


@dataclass(frozen=True, slots=True)
class Means:
    """The real ones by default; a test that injects faults hands in others.

    ``expiry`` is the module of that name, or what has its ``arm`` and ``disarm``; ``publish`` writes the file
    for the agent.
    """

    journal: Journal = field(default_factory=Journal)
    toggles: Callable[[], Mapping[str, Toggle]] = catalog.load
    writer: Callable[[str, Target, Account], Writer] = open_writer
    facts: Callable[[Target, Journal], facts.Facts] = facts.gather
    expiry: Any = None
    publish: Callable[[Journal], None] | None = None
