"""Define the toggle engine's dependencies (catalog, writers, journal, facts), which tests can replace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from innoscope.toggles import catalog, facts
from innoscope.toggles.backends.memory import MemoryWriter
from innoscope.toggles.backends.sql import SqlWriter
from innoscope.toggles.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.target.credentials import LoginOptions
    from innoscope.target.model import Target
    from innoscope.toggles.model import Toggle, Writer


def open_writer(kind: str, target: Target, account: LoginOptions) -> Writer:
    """Return the writer of a backend, which the caller must close. Raise the writer's own errors."""
    if kind == "sql":
        return SqlWriter(target, account)
    if kind == "memory":
        return MemoryWriter(target)
    raise ValueError(f"unknown backend: {kind}")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The toggle engine's dependencies. Tests replace the defaults to inject faults.

    ``expiry`` is the module of that name, or an object with the same functions ``arm`` and ``disarm``.
    ``publish`` writes the status file for the agent.
    """

    journal: Journal = field(default_factory=Journal)
    toggles: Callable[[], Mapping[str, Toggle]] = catalog.load
    writer: Callable[[str, Target, LoginOptions], Writer] = open_writer
    facts: Callable[[Target, Journal], facts.Facts] = facts.gather
    expiry: Any = None
    publish: Callable[[Journal], None] | None = None
