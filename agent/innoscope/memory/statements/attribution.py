"""Take snapshots that include each thread's statement, read from memory without stopping any thread.

Statements are read immediately before and after the stacks are copied. A statement is ``exact`` if its thread
was off the CPU when the stack was copied, and has not run between that time and the read of the statement.
The statement of any other thread is used only if the thread was executing the same command before and after
the snapshot. Such a statement is marked ``running``.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.common.errors import InnoscopeError
from innoscope.memory.locks.blockers import BLOCKED, Waiter
from innoscope.memory.statements.layout import installed, learn
from innoscope.sampling.classify import IDLE
from innoscope.sampling.model import AT_REST
from innoscope.target.digests import SharedDigests
from innoscope.target.model import Query
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence

    from innoscope._native import Command, StatementDetails
    from innoscope.memory.statements.layout import StatementLayout
    from innoscope.sampling.model import Blocked, Snapshot, Thread
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

EXACT: Final = "exact"
RUNNING: Final = "running"
#: Maximum length of statement text, in bytes. The Rust core does not read more.
MOST_BYTES: Final = 4_096
#: A statement that contains one of these words may set a password, so its text is never shown.
_SECRET: Final = re.compile(rb"password|identified", re.IGNORECASE)


class CountingEngine(Protocol):
    """The parts of the snapshot engine that attribution needs."""

    def take_snapshot(self) -> Snapshot:
        """Take one snapshot."""

    def run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return the current run counts of threads."""

    def copied_run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return the run counts of the threads that the last snapshot copied off the CPU."""


class CommandReader(Protocol):
    """The parts of ``_native.StatementReader`` that attribution needs."""

    def find(self, known: Container[int]) -> list[int]:
        """Choose the connections that are executing a command, and return the ids of their threads."""

    def choose(self, tids: Sequence[int]) -> None:
        """Choose the connections of these threads."""

    def commands(self) -> dict[int, Command]:
        """Return the current commands of the chosen connections."""

    def details(self, commands: Sequence[Command], with_text: bool) -> list[StatementDetails]:
        """Read the digest and the names of each command, and the text if requested."""


class BlockerFinder(Protocol):
    """The parts of ``Blockers`` that attribution needs."""

    def find(self, waiters: Sequence[Waiter], threads: Collection[int]) -> dict[int, Blocked]:
        """Return the lock and the blocker of each waiter, by thread id, where known."""


@dataclass(frozen=True, slots=True)
class ObservedCommands:
    """The commands before or after a snapshot, by thread id in the server's pid namespace.

    ``counts`` contains the threads' run counts by thread id on the host. Before a snapshot, the counts are
    read before the commands; after a snapshot, they are read after the commands. ``details`` contains only
    commands that are not cached.
    """

    commands: Mapping[int, Command]
    counts: Mapping[int, int]
    details: Mapping[Command, StatementDetails]


_NOTHING: Final = ObservedCommands({}, {}, {})


class Attribution:
    """Takes snapshots of one server, with each thread's statement as its query. Not thread-safe.

    If ``blockers`` is set, each thread that is waiting for a lock also gets the lock and its blocker.
    Texts are truncated to ``most_bytes``. If ``most_bytes`` is 0, statements have a digest but no text, and
    no text leaves the Rust core.
    """

    def __init__(
        self,
        target: Target,
        engine: CountingEngine,
        most_bytes: int,
        layout: StatementLayout | None = None,
        reader: CommandReader | None = None,
        blockers: BlockerFinder | None = None,
    ) -> None:
        self._target = target
        self._engine = engine
        self._most_bytes = most_bytes
        self._layout = layout or learn(target)
        self._reader = reader or self._layout.open_reader(target)
        self._blockers = blockers
        self._digests = SharedDigests()
        self._threads: dict[int, Thread] = {}  # of the last snapshot, by id in the server's pid namespace
        self._queries: dict[Command, Query] = {}  # of the last snapshot
        #: Each thread of the last snapshot that has a query, without and with the query.
        self._with_query: dict[int, tuple[Thread, Thread]] = {}

    def take_snapshot(self) -> Snapshot:
        """Take a snapshot, attach the statements, and add a note on how they were found, or why not.

        Raise the snapshot engine's errors, NoSuchProcess and NoRights.
        """
        if self._reader is None:
            why = self._layout.source
            return _noted(self._engine.take_snapshot(), f"statements are not available for this build: {why}")
        if not self._threads:
            # The first snapshot also reads symbols. This takes longer than many statements run.
            self._threads = _by_id(self._engine.take_snapshot())
        before = self.before()
        snapshot = self.attach(self._engine.take_snapshot(), before)
        return _noted(snapshot, f"statements from memory, by {self._layout.source}")

    def before(self) -> ObservedCommands:
        """Read the statements before a snapshot.

        Raise NoSuchProcess if the server has exited, or NoRights if we are not allowed to read its memory.
        """
        with translating(self._target.pid):
            if self._reader is None or not (tids := self._reader.find(self._threads)):
                return _NOTHING
            counts = self._engine.run_counts(self._host_ids(tids))
            commands = self._reader.commands()
            return ObservedCommands(commands, counts, self._details(commands.values(), _NOTHING))

    def attach(self, snapshot: Snapshot, before: ObservedCommands) -> Snapshot:
        """Read the statements after a snapshot, and return the snapshot with its statements.

        Raise the same errors as ``before``.
        """
        self._threads = _by_id(snapshot)
        after = self._after(before)
        busy = [one for one in {**before.commands, **after.commands} if one in self._threads]
        copied = self._engine.copied_run_counts([self._threads[one].tid for one in busy])
        details = {**after.details, **before.details}
        queries: dict[int, Query] = {}
        found: dict[Command, Query] = {}
        waiters: list[Waiter] = []
        for tid in busy:
            thread = self._threads[tid]
            count = copied.get(thread.tid)
            command, trust = _chosen(thread, count, before, after)
            if command is not None:
                queries[tid] = found[command] = self._query(command, trust, details)
                if trust == EXACT and count is not None and thread.wait in BLOCKED:
                    waiters.append(Waiter(tid, thread.wait, command.thd, command.connection, count))
        self._queries = found
        return self._attached(snapshot, queries, self._blocked(waiters))

    def _blocked(self, waiters: Sequence[Waiter]) -> dict[int, Blocked]:
        """Return the lock and the blocker of each waiter that has not run since its stack was copied.

        After an unexpected failure, snapshots continue without blockers.
        """
        if not waiters or self._blockers is None:
            return {}
        try:
            with translating(self._target.pid):
                found = self._blockers.find(waiters, self._threads.keys())
                counts = self._engine.run_counts(self._host_ids(found))
        except InnoscopeError:
            raise
        except Exception as error:  # the message may quote the server's memory
            self._blockers = None
            reason = f"unexpected {type(error).__name__}"
            _log.warning("snapshots have no blockers", extra={"pid": self._target.pid, "reason": reason})
            return {}
        steady = {one.tid for one in waiters if counts.get(self._threads[one.tid].tid) == one.runs}
        return {tid: blocked for tid, blocked in found.items() if tid in steady}

    def _attached(
        self, snapshot: Snapshot, queries: Mapping[int, Query], waits: Mapping[int, Blocked]
    ) -> Snapshot:
        """Return the snapshot with the queries. An unchanged thread is the same object as before."""
        last, self._with_query = self._with_query, {}
        for tid, query in queries.items():
            thread = self._threads[tid]
            plain, attached = last.get(tid, (None, thread))
            blocked = waits.get(tid)
            if plain is not thread or attached.query is not query or attached.blocked != blocked:
                attached = replace(thread, query=query, blocked=blocked)
            self._with_query[tid] = thread, attached
        if not queries:
            return snapshot
        threads = ((thread, self._with_query.get(thread.ns_tid)) for thread in snapshot.threads)
        return replace(snapshot, threads=tuple([pair[1] if pair else thread for thread, pair in threads]))

    def _after(self, before: ObservedCommands) -> ObservedCommands:
        """Read the statements after a snapshot, except for threads that were idle in it."""
        tids = [tid for tid, thread in self._threads.items() if thread.wait not in IDLE]
        if not tids or self._reader is None:
            return _NOTHING
        with translating(self._target.pid):
            self._reader.choose(tids)
            commands = self._reader.commands()
            details = self._details(commands.values(), before)
            return ObservedCommands(commands, self._engine.run_counts(self._host_ids(commands)), details)

    def _host_ids(self, tids: Iterable[int]) -> list[int]:
        """Return the host ids of those ``tids`` that the last snapshot contains."""
        return [self._threads[tid].tid for tid in tids if tid in self._threads]

    def _details(
        self, commands: Iterable[Command], before: ObservedCommands
    ) -> dict[Command, StatementDetails]:
        """Read the details of the commands that are neither cached nor in ``before``."""
        known = self._queries
        new = [one for one in commands if one not in known and one not in before.details]
        if not new or self._reader is None:
            return {}
        return dict(zip(new, self._reader.details(new, self._most_bytes > 0), strict=True))

    def _query(self, command: Command, trust: str, details: Mapping[Command, StatementDetails]) -> Query:
        """Return a command's query. It is cached as long as the thread is executing the command."""
        query = self._queries.get(command)
        if query is None:
            return self._described(command, trust, details[command])
        return query if query.trust == trust else replace(query, trust=trust)

    def _described(self, command: Command, trust: str, details: StatementDetails) -> Query:
        raw = details.text
        shown = _decoded(raw[: self._most_bytes]) if raw and not _SECRET.search(raw) else None
        digest = self._digests.digest(details.digest) if details.digest else None
        return Query(
            connection_id=command.connection,
            user=details.user,
            host=None,
            db=details.schema,
            command=installed().commands.get(command.number, str(command.number)),
            state=None,
            seconds=None,
            digest_text=digest.text if digest else None,
            text=shown or None,
            text_bytes=command.length if digest else None,
            trust=trust,
            digest_id=digest.id if digest else None,
        )


def _chosen(
    thread: Thread, copied: int | None, before: ObservedCommands, after: ObservedCommands
) -> tuple[Command | None, str]:
    """Return the command that a thread executed when its stack was copied, and its trust level."""
    first, second = before.commands.get(thread.ns_tid), after.commands.get(thread.ns_tid)
    count = copied if thread.trust in AT_REST else None
    if first and count is not None and count == before.counts.get(thread.tid):
        return first, EXACT
    if second and count is not None and count == after.counts.get(thread.tid):
        return second, EXACT
    if first and first == second and first.query:
        return first, RUNNING
    return None, RUNNING


def may_show_text(pid: int) -> bool:
    """Return whether this process runs as root or as the server's user, and may therefore show literals."""
    try:
        return os.geteuid() in (0, Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return False


def _decoded(raw: bytes) -> str:
    """Return the beginning of a text, without a character that is cut off at the end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)


def _by_id(snapshot: Snapshot) -> dict[int, Thread]:
    return {thread.ns_tid: thread for thread in snapshot.threads}


def _noted(snapshot: Snapshot, note: str) -> Snapshot:
    return replace(snapshot, notes=(*snapshot.notes, note))
