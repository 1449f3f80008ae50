"""What the engine works with: the catalog, the writers, the journal, the facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from innoscope.toggles import catalog, facts
from innoscope.toggles.backends.memory import MemoryWriter
from innoscope.toggles.backends.sql import SqlWriter
from innoscope.toggles.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.target.credentials import Account
    from innoscope.target.model import Target
    from innoscope.toggles.model import Toggle, Writer


def open_writer(kind: str, target: Target, account: Account) -> Writer:
    """The writer for one way; close it after use. Raises what making it raises."""
    if kind == "sql":
        return SqlWriter(target, account)
    if kind == "memory":
        return MemoryWriter(target)
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
