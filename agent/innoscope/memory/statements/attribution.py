"""Take snapshots with the statement of each thread, read from memory without stopping a thread.

Statements are read immediately before and after the stacks are copied. A statement is ``exact`` if its thread
was off the CPU both when the statement was read and when the stack was copied, with the same count of context
switches: the thread did not run in between. The statement of any other thread is used only if the thread
executes the same command before and after the snapshot; it is marked ``running``.
"""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.memory.locks.layout import ProcessMemory
from innoscope.memory.statements import reader
from innoscope.memory.statements.layout import installed, learn
from innoscope.sampling.digests import digest
from innoscope.sampling.engine import attach_queries
from innoscope.sampling.model import AT_REST
from innoscope.target.model import Query
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from innoscope.memory.locks.layout import Part
    from innoscope.memory.statements.layout import StatementLayout
    from innoscope.memory.statements.reader import Statement
    from innoscope.sampling.model import Snapshot
    from innoscope.target.model import Target

EXACT: Final = "exact"
RUNNING: Final = "running"
#: A statement that contains one of these words may set a password, so its text is never shown.
_SECRET: Final = re.compile(rb"password|identified", re.IGNORECASE)


class RestingEngine(Protocol):
    """The parts of the engine that attribution needs."""

    def take_snapshot(self) -> Snapshot:
        """Take one snapshot."""

    def at_rest(self) -> dict[int, int]:
        """Return ``{tid: count of context switches}`` of the threads that are off the CPU now."""

    def copied_at_rest(self) -> dict[int, int]:
        """Return the same for the threads that were off the CPU while the last snapshot copied them."""


class Attribution:
    """Takes snapshots of one server, with each thread's statement as its query. Not thread-safe.

    Texts are truncated to ``most_bytes``. If ``most_bytes`` is 0, statements have a digest but no text.
    """

    def __init__(
        self,
        target: Target,
        engine: RestingEngine,
        most_bytes: int,
        layout: StatementLayout | None = None,
        memory: ProcessMemory | None = None,
    ) -> None:
        self._target = target
        self._engine = engine
        self._most_bytes = most_bytes
        self._layout = layout or learn(target)
        self._memory = memory or ProcessMemory(target.pid)
        self._known: frozenset[int] = frozenset()  # the threads of the last snapshot

    def take_snapshot(self) -> Snapshot:
        """Take a snapshot, attach the statements, and add a note that says how they were found, or why not.

        Raise the engine's errors, NoSuchProcess and NoRights.
        """
        part = self._layout.part
        if part is None:
            why = self._layout.source
            return _noted(self._engine.take_snapshot(), f"statements are not available for this build: {why}")
        if not self._known:
            # The first snapshot also reads symbols, which takes longer than many statements run.
            self._known = _ids(self._engine.take_snapshot())
        counts, before = self._engine.at_rest(), self._read(part)
        snapshot = self._engine.take_snapshot()
        after, later = self._read(part), self._engine.at_rest()
        copied = self._engine.copied_at_rest()
        self._known = _ids(snapshot)
        queries = {}
        for thread in snapshot.threads:
            first, second = before.get(thread.ns_tid), after.get(thread.ns_tid)
            count = copied.get(thread.tid) if thread.trust in AT_REST else None
            if first and count is not None and count == counts.get(thread.tid):
                queries[thread.ns_tid] = self._query(first, EXACT)
            elif second and count is not None and count == later.get(thread.tid):
                queries[thread.ns_tid] = self._query(second, EXACT)
            elif first and second and first.command == second.command and first.command.query:
                queries[thread.ns_tid] = self._query(first, RUNNING)
        return _noted(attach_queries(snapshot, queries), f"statements from memory, by {self._layout.source}")

    def _read(self, part: Part) -> dict[int, Statement]:
        with translating(self._target.pid):
            return reader.read(self._memory, part, self._known)

    def _query(self, statement: Statement, trust: str) -> Query:
        command, raw = statement.command, statement.text
        flavour, version = self._target.flavour, self._target.version
        shown = _decoded(raw[: self._most_bytes]) if raw and not _SECRET.search(raw) else None
        return Query(
            connection_id=command.connection,
            user=statement.user,
            host=None,
            db=statement.schema,
            command=installed().commands.get(command.number, str(command.number)),
            state=None,
            seconds=None,
            digest_text=digest(raw, flavour=flavour, version=version).text if raw else None,
            text=shown or None,
            text_bytes=command.length if raw else None,
            trust=trust,
        )


def may_show_text(pid: int) -> bool:
    """Return whether this process runs as root or as the server's user, and may therefore show literals."""
    try:
        return os.geteuid() in (0, Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return False


def _decoded(raw: bytes) -> str:
    """Return the beginning of a text, without a character that is cut off at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)


def _ids(snapshot: Snapshot) -> frozenset[int]:
    return frozenset(thread.ns_tid for thread in snapshot.threads)


def _noted(snapshot: Snapshot, note: str) -> Snapshot:
    return replace(snapshot, notes=(*snapshot.notes, note))
