"""Fetch an incident file's facts over SQL, or InnoDB's variables from memory if SQL returns no variables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from innoscope.common.errors import InnoscopeError
from innoscope.diagnose.incident import redaction
from innoscope.diagnose.incident.server_facts import fetch, not_fetched
from innoscope.memory.reader import MemoryReader

if TYPE_CHECKING:
    from innoscope.diagnose.incident.server_facts import Connect, ServerFacts
    from innoscope.target.model import Target


class FactsFetcher:
    """Fetches the facts when an EvidenceCollector calls it (``Sources.also``), and stores them.

    A call has no effect if no facts are missing. With a ``target``, InnoDB's variables are read from its
    memory if SQL returns none.
    """

    def __init__(self, target: Target | None = None) -> None:
        self._target = target
        self.fetched = not_fetched(
            "unsupported", "SQL was disabled, or the server exited before it was queried"
        )

    def __call__(self, connect: Connect, waiting: int) -> None:
        """Query the server; ``waiting`` is the number of threads waiting for row locks."""
        if not self.fetched.missing:
            return
        self.fetched = fetch(connect, waiting)
        if self._target is not None and not self.fetched.variables:
            with suppress(InnoscopeError):
                _from_memory(self._target, self.fetched)


def _from_memory(target: Target, fetched: ServerFacts) -> None:
    """Add InnoDB's variables from memory. Unlike over SQL, switches are 0 or 1, and sets are numbers."""
    found = MemoryReader(target).variables()
    if found:
        fetched.variables = redaction.variables({name: str(value) for name, value in found.items()})
        why = fetched.missing["variables"]
        fetched.missing["variables"] = replace(why, words=f"InnoDB's only, from memory: {why.words}")
