"""Take a series of snapshots, with statements if they are available."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from innoscope.common.errors import InnoscopeError
from innoscope.common.workers import SLOW_RUNS, Job
from innoscope.memory.locks import layout as locks
from innoscope.memory.locks.blockers import Blockers
from innoscope.memory.locks.layout import ProcessMemory
from innoscope.memory.statements.attribution import Attribution, ObservedCommands
from innoscope.memory.statements.layout import StatementLayout, learn
from innoscope.target.container import tenant_or_user
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.common.workers import Workers
    from innoscope.memory.statements.attribution import BlockerFinder, CommandReader, CountingEngine
    from innoscope.sampling.model import Snapshot
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Kind of the jobs that find layouts.
LEARNING: Final = "layouts"
#: Seconds between the first failure and the retry. Each further failure doubles the delay, until a snapshot
#: has statements.
_RETRY_S: Final = 60.0
#: Maximum seconds before a retry.
_MAX_RETRY_S: Final = 3_600.0
#: The delay is at least this multiple of the failed attempt's duration, up to the maximum.
_REST_FACTOR: Final = 100

_T = TypeVar("_T")


def open_blockers(target: Target) -> Blockers | None:
    """Return a finder of blockers; None if the layout of the server's locks is unknown."""
    try:
        layout = locks.learn(target)
    except InnoscopeError as error:
        _log.warning("snapshots have no blockers", extra={"pid": target.pid, "reason": error.in_one_line})
        return None
    missing = [why for part, why in layout.why.items() if part in ("sessions", "metadata", "rows")]
    if missing or layout.sessions is None:
        reason = missing[0] if missing else "not in the catalog"
        _log.warning("not all blockers are available", extra={"pid": target.pid, "reason": reason})
    return Blockers(ProcessMemory(target.pid), layout) if layout.sessions else None


class StatementSource:
    """Takes snapshots of one server. Not thread-safe, except for ``available``.

    The first snapshots have no statements, because a job on ``workers`` first has to find the layout, which
    may take seconds. If this fails, or if reading statements fails, snapshots continue without statements,
    the reason is logged, and reading is retried later. Statements have digests, but no text.
    """

    def __init__(
        self,
        target: Target,
        engine: CountingEngine,
        workers: Workers,
        *,
        learn: Callable[[Target], StatementLayout] = learn,
        open_reader: Callable[[StatementLayout, Target], CommandReader | None] = StatementLayout.open_reader,
        open_blockers: Callable[[Target], BlockerFinder | None] = open_blockers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._engine = engine
        self._learn, self._open_reader, self._open_blockers = learn, open_reader, open_blockers
        self._clock = clock
        self._workers = workers
        self._job: Job | None = None  # finds the layout
        self._attribution: Attribution | None = None
        self._learning = False
        self._retry_s = _RETRY_S
        self._due = 0.0
        self._reason = ""

    @property
    def available(self) -> bool:
        """Return whether snapshots currently have statements."""
        return self._attribution is not None

    def take_snapshot(self) -> Snapshot:
        """Take one snapshot. Raise only the snapshot engine's errors."""
        attribution = self._attribution
        if attribution is None:
            snapshot = self._engine.take_snapshot()
            self._learn_if_due()
            return snapshot
        before = self._try(attribution.before, ObservedCommands({}, {}, {}))
        snapshot = self._engine.take_snapshot()
        if self._attribution is not None:
            snapshot = self._try(lambda: attribution.attach(snapshot, before), snapshot)
        if self._attribution is not None:
            self._retry_s = _RETRY_S
        return snapshot

    def close(self) -> None:
        """Cancel the job that finds the layout, if it is still waiting for a thread."""
        if self._job is not None:
            self._workers.cancel(self._job)

    def _try(self, read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except BaseException as error:  # includes panics of the Rust core
            self._fail(_reason(error))
            return otherwise

    def _learn_if_due(self) -> None:
        if not self._learning and self._clock() >= self._due:
            self._learning = True
            pid = self._target.pid
            turn = tenant_or_user(ProcFs(), pid)
            self._job = Job(LEARNING, str(pid), self._learn_layout, self._lost, turn)
            if self._reason:  # a retry, which comes after the first attempts for other servers
                self._job.slow_runs = SLOW_RUNS
            self._workers.submit(self._job)

    def _learn_layout(self) -> None:
        """Find the layout. One thread does this for all servers, whose owners take turns."""
        began = self._clock()
        try:
            layout = self._learn(self._target)
            reader = self._open_reader(layout, self._target)
            if reader is None:
                self._fail(layout.source)
            else:
                blockers = self._open_blockers(self._target)
                self._attribution = Attribution(self._target, self._engine, 0, layout, reader, blockers)
                self._reason = ""
                _log.info("statements are read from memory, by %s", layout.source, extra=self._extra)
        except BaseException as error:  # includes panics of the Rust core
            self._fail(_reason(error), self._clock() - began)
        finally:
            self._learning = False

    def _lost(self) -> None:
        self._fail("the thread that learns the layout died")
        self._learning = False

    def _fail(self, reason: str, took_s: float = 0.0) -> None:
        """Continue without statements, and log the reason if it is new."""
        self._attribution = None
        self._due = self._clock() + min(max(self._retry_s, _REST_FACTOR * took_s), _MAX_RETRY_S)
        self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)
        if reason != self._reason:
            self._reason = reason
            _log.warning("snapshots have no statements", extra={**self._extra, "reason": reason})

    @property
    def _extra(self) -> dict[str, int]:
        return {"pid": self._target.pid}


def _reason(error: BaseException) -> str:
    """Return the reason for a failure. Omit an unexpected error's message, which may quote a statement."""
    return error.in_one_line if isinstance(error, InnoscopeError) else f"unexpected {type(error).__name__}"
